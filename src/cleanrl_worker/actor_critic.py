"""The networks of SAC, TD3 and DDPG in numpy, and the interface of their learners."""

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
    """An actor, its critics and their target networks; saved under CleanRL's names in torch's layout."""

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
        """The names of the actor's output layers; each gives one number per action dimension."""

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
        """The number of trained parameters."""
        return sum(part.size for part in self.trained_networks.values())

    def initialise(self, rng: np.random.Generator) -> None:
        for part in self.trained_networks.values():
            part.initialise(rng)
        for critic, target in zip(self.critics, self.targets, strict=True):
            np.copyto(target.flat, critic.flat)
        if self.target_actor is not None:
            np.copyto(self.target_actor.flat, self.actor.flat)

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all weights under names such as `qf1.fc1.weight`."""
        networks = {**self.trained_networks, **self.target_networks}
        return {
            key: part
            for name, network in networks.items()
            for key, part in self.named_arrays(name, network, network.parameters).items()
        }

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        for name, network in {**self.trained_networks, **self.target_networks}.items():
            self.assign(name, network, network.parameters, state)

    def named_arrays(self, name: str, network: Perceptron, views: PerceptronViews) -> dict[str, Array]:
        """Copy the parts of a vector with the network's shape (weights or Adam moments) into a dict by name."""
        parts = list(network.named_arrays(views).values())
        last = len(parts) - 2
        named = {
            f"{name}.fc{index // 2 + 1}.{('weight', 'bias')[index % 2]}": part
            for index, part in enumerate(parts[:last] if "actor" in name else parts)
        }
        for number, head in enumerate(self.heads if "actor" in name else ()):
            rows = slice(number * self.action_size, (number + 1) * self.action_size)
            named |= {f"{name}.{head}.weight": parts[last][rows], f"{name}.{head}.bias": parts[last + 1][rows]}
        return named

    def assign(
        self, name: str, network: Perceptron, views: PerceptronViews, state: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Reverse `named_arrays`. A missing name raises KeyError, a wrong shape ValueError."""
        expected = self.named_arrays(name, network, views)
        check_shapes(expected, state)
        trunk = [state[key] for key in expected if ".fc_" not in key]
        heads = [key for key in expected if ".fc_" in key]
        if heads:
            trunk += [
                np.concatenate([state[key] for key in heads if key.endswith(kind)]) for kind in ("weight", "bias")
            ]
        network.assign(views, dict(zip(network.named_arrays(views), trunk, strict=True)))


class ActorCriticLearner(Protocol):
    """Updates the networks; implemented in numpy (control_kernels.py) and in torch (torch_control.py)."""

    def act(self, observations: npt.NDArray[Any]) -> Array:
        """Return the actor's outputs [environments, outputs] for one observation per environment."""

    def update(self, replay: Replay, is_policy_due: bool, is_target_due: bool) -> bool:
        """Update the critics on a new sample, and the policy and targets where due; False if a loss is not finite."""

    def losses(self) -> dict[str, float]:
        """Return the losses of the latest update under CleanRL's names."""

    def first_non_finite(self) -> tuple[int, list[str]] | None:
        """Return how many updates ago a metric was first not finite, and which; None if `update` reports it itself."""

    def sync_networks(self) -> None:
        """Copy the learner's own weights, if it has any, to the numpy networks."""

    def optimizer_state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the arrays and JSON facts of the optimizers and random generator for a checkpoint."""

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None: ...


class ActorCriticSettings(Protocol):
    """The settings that the learners read from an algorithm's Config."""

    @property
    def batch_size(self) -> int: ...
    @property
    def gamma(self) -> float: ...
    @property
    def tau(self) -> float: ...
