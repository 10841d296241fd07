"""The networks of SAC, TD3 and DDPG in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.flat_network import Array
from cleanrl_worker.perceptron import Perceptron


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
        """`heads` are the names of the actor's output layers; each gives one number per action dimension."""
        self.observation_size = observation_size
        self.action_size = action_size
        layers = [f"fc{number}" for number in range(1, len(hidden) + 2)]

        def actor(name: str) -> Perceptron:
            names = [f"{name}.{layer}" for layer in (*layers[:-1], *heads)]
            return Perceptron(observation_size, len(heads) * action_size, hidden, layer_names=names)

        def critic(name: str) -> Perceptron:
            names = [f"{name}.{layer}" for layer in layers]
            return Perceptron(observation_size + action_size, 1, hidden, layer_names=names)

        critic_names = [f"qf{number}" for number in range(1, critics + 1)]
        self.actor = actor("actor")
        self.critics = [critic(name) for name in critic_names]
        self.targets = [critic(f"{name}_target") for name in critic_names]
        self.target_actor = actor("target_actor") if has_target_actor else None
        self.trained_networks = {"actor": self.actor, **dict(zip(critic_names, self.critics, strict=True))}
        self.target_networks = self.targets + ([] if self.target_actor is None else [self.target_actor])

    @property
    def size(self) -> int:
        """The number of trained parameters."""
        return sum(part.size for part in self.trained_networks.values())

    def targeted_networks(self) -> list[tuple[Perceptron, Perceptron]]:
        """Return each network that has a target network, with that."""
        return list(zip((*self.critics, self.actor), self.target_networks, strict=False))

    def initialize(self, rng: np.random.Generator) -> None:
        for part in self.trained_networks.values():
            part.initialize(rng)
        for network, target in self.targeted_networks():
            np.copyto(target.flat, network.flat)

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all weights under names such as `qf1.fc1.weight`."""
        return {
            key: part
            for network in (*self.trained_networks.values(), *self.target_networks)
            for key, part in network.named_arrays(network.parameters).items()
        }

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        for network in (*self.trained_networks.values(), *self.target_networks):
            network.assign(network.parameters, state)
