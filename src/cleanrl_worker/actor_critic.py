"""The networks of SAC, TD3 and DDPG in numpy, and what a learner of theirs offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from cleanrl_worker.perceptron import Array, Perceptron, PerceptronViews
from cleanrl_worker.ppo_network import check_shapes

if TYPE_CHECKING:
    from cleanrl_worker.replay import Replay


class ActorCriticNetworks:
    """An actor, its critics and what follows them slowly; under CleanRL's names, in torch's layout outside of here."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: tuple[int, ...],
        heads: tuple[str, ...],
        critics: int,
        has_target_actor: bool,
    ) -> None:
        self.observation_size = observation_size
        self.action_size = action_size
        self.heads = heads
        """What the actor gives for each action, by the names of its last layers."""

        def actor() -> Perceptron:
            return Perceptron(observation_size, len(heads) * action_size, hidden)

        def critic() -> Perceptron:
            return Perceptron(observation_size + action_size, 1, hidden)

        self.actor = actor()
        self.critics = [critic() for _ in range(critics)]
        self.targets = [critic() for _ in range(critics)]
        self.target_actor = actor() if has_target_actor else None
        names = [f"qf{number + 1}" for number in range(critics)]
        self.trained_networks = {"actor": self.actor, **dict(zip(names, self.critics, strict=True))}
        self.target_networks = {f"{name}_target": part for name, part in zip(names, self.targets, strict=True)}
        if self.target_actor is not None:
            self.target_networks["target_actor"] = self.target_actor

    @property
    def size(self) -> int:
        """Parameters that are learned."""
        return sum(part.size for part in self.trained_networks.values())

    def initialise(self, rng: np.random.Generator) -> None:
        for part in self.trained_networks.values():
            part.initialise(rng)
        for critic, target in zip(self.critics, self.targets, strict=True):
            np.copyto(target.flat, critic.flat)
        if self.target_actor is not None:
            np.copyto(self.target_actor.flat, self.actor.flat)

    def state_dict(self) -> dict[str, Array]:
        """Copies of all weights, as `qf1.fc1.weight`."""
        every = {**self.trained_networks, **self.target_networks}
        return {
            key: part
            for name, network in every.items()
            for key, part in self.named_arrays(name, network, network.parameters).items()
        }

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        for name, network in {**self.trained_networks, **self.target_networks}.items():
            self.assign(name, network, network.parameters, state)

    def named_arrays(self, name: str, network: Perceptron, views: PerceptronViews) -> dict[str, Array]:
        """Copies of the parts of a vector that has a network's shape: its weights, or moments of Adam."""
        parts = list(network.named_arrays(views).values())
        last = len(parts) - 2
        found = {
            f"{name}.fc{index // 2 + 1}.{('weight', 'bias')[index % 2]}": part
            for index, part in enumerate(parts[:last] if "actor" in name else parts)
        }
        for number, head in enumerate(self.heads if "actor" in name else ()):
            rows = slice(number * self.action_size, (number + 1) * self.action_size)
            found |= {f"{name}.{head}.weight": parts[last][rows], f"{name}.{head}.bias": parts[last + 1][rows]}
        return found

    def assign(
        self, name: str, network: Perceptron, views: PerceptronViews, state: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """The reverse of `named`. A missing name is a KeyError, a wrong shape a ValueError."""
        wanted = self.named_arrays(name, network, views)
        check_shapes(wanted, state)
        trunk = [state[key] for key in wanted if ".fc_" not in key]
        heads = [key for key in wanted if ".fc_" in key]
        if heads:
            trunk += [
                np.concatenate([state[key] for key in heads if key.endswith(kind)]) for kind in ("weight", "bias")
            ]
        network.assign(views, dict(zip(network.named_arrays(views), trunk, strict=True)))


class ActorCriticLearner(Protocol):
    """Improves the networks; there are those over numpy (below) and those over torch (torch_control.py)."""

    def act(self, observations: npt.NDArray[Any]) -> Array:
        """The actor's outputs [rows, outputs] for as many observations as there are environments."""

    def update(self, replay: Replay, is_policy_due: bool, is_target_due: bool) -> bool:
        """One step of the critics on a fresh sample, and of what else is due; False where it is seen to be infinite."""

    def losses(self) -> dict[str, float]:
        """Of the newest steps, by CleanRL's names."""

    def first_non_finite(self) -> tuple[int, list[str]] | None:
        """How many updates ago something was first not finite, and what; none where `update` would have said so."""

    def sync_networks(self) -> None:
        """Brings the networks up to date, where the learner keeps its own."""

    def optimizer_state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and facts of the optimizers and of the generator for a checkpoint."""

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None: ...


class ActorCriticSettings(Protocol):
    """What the kernels need of an algorithm's Config."""

    @property
    def batch_size(self) -> int: ...
    @property
    def gamma(self) -> float: ...
    @property
    def tau(self) -> float: ...
