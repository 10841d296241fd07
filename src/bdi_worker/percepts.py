"""What a BDI agent perceives in an environment, what its actions are called, and by which state plans are learned.

A percept is a tuple: its name and its arguments, which are numbers or atoms.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.worker.envs.families import find_entry

Percept = tuple[str | int, ...]


class Text(str):
    """An argument that is a text in quotes, not an atom."""


class Perception(ABC):
    """The percepts of one environment."""

    names: tuple[str, ...]
    """Those that its agent may have."""
    family: str
    pattern: str
    """Its family, and an id that finds its description there."""
    example: str
    """The example whose plans are learned here."""
    fixed: list[Percept]
    """Percepts that never change."""

    def __init__(self, env: Any) -> None:
        self.fixed = []
        entry = find_entry(self.family, self.pattern)
        assert entry is not None
        self.action_names = entry.actions[: int(env.action_space.n)]
        self.idle_action = 0
        """What an agent does that waits, or has no plan."""

    @abstractmethod
    def percepts(self, observation: Any) -> list[Percept]:
        """Return what changes, in a fixed order."""

    def state(self, observation: Any) -> str:
        """Return the state to which values of plans belong."""
        return str(int(observation))


class FrozenLake(Perception):
    names = ("at", "size", "hole", "goal")
    family, pattern = "toy_text", "FrozenLake"
    example = "grid_learn"

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        desc = env.unwrapped.desc
        self._columns = int(desc.shape[1])
        self.fixed = [("size", *map(int, desc.shape))]
        for symbol, name in ((b"H", "hole"), (b"G", "goal")):
            self.fixed += [(name, row, column) for row, column in _cells(desc) if desc[row, column] == symbol]

    def percepts(self, observation: Any) -> list[Percept]:
        return [("at", *divmod(int(observation), self._columns))]


class CliffWalking(Perception):
    names = ("at", "size", "cliff", "goal")
    family, pattern = "toy_text", "CliffWalking"
    example = "grid_learn"

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        rows, self._columns = map(int, env.unwrapped.shape)
        cliff = env.unwrapped._cliff
        self.fixed = [("size", rows, self._columns), ("goal", rows - 1, self._columns - 1)]
        self.fixed += [("cliff", row, column) for row, column in _cells(cliff) if cliff[row, column]]

    def percepts(self, observation: Any) -> list[Percept]:
        return [("at", *divmod(int(observation), self._columns))]


class Taxi(Perception):
    names = ("taxi", "passenger", "destination", "stop", "wall")
    family, pattern = "toy_text", "Taxi"
    example = "taxi_learn"
    _PLACES = ("red", "green", "yellow", "blue", "aboard")
    _SIZE = 5

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        core = env.unwrapped
        self._decode = core.decode
        self.fixed = [("stop", self._PLACES[index], *map(int, cell)) for index, cell in enumerate(core.locs)]
        for row in range(self._SIZE):
            for column in range(self._SIZE - 1):
                if core.desc[row + 1, 2 * column + 2] == b"|":
                    self.fixed += [("wall", row, column, "east"), ("wall", row, column + 1, "west")]

    def percepts(self, observation: Any) -> list[Percept]:
        row, column, passenger, destination = map(int, self._decode(int(observation)))
        return [
            ("taxi", row, column),
            ("passenger", self._PLACES[passenger]),
            ("destination", self._PLACES[destination]),
        ]


class MiniGrid(Perception):
    """The agent's own view: what it sees, and what is next to it."""

    names = ("direction", "mission", "ahead", "door_ahead", "beside", "sees", "carrying")
    family, pattern = "minigrid", "MiniGrid"
    example = "minigrid_learn"
    _DIRECTIONS = ("right", "down", "left", "up")

    def __init__(self, env: Any) -> None:
        from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

        super().__init__(env)
        self._types, self._colors = IDX_TO_OBJECT, IDX_TO_COLOR
        self._door_states = {index: name for name, index in STATE_TO_IDX.items()}
        self.idle_action = self.action_names.index("done") if "done" in self.action_names else 0

    def percepts(self, observation: Any) -> list[Percept]:
        image = observation["image"]
        middle, near = image.shape[0] // 2, image.shape[1] - 1
        """The agent's cell: it looks towards lower numbers of the second axis."""
        ahead = self._types[int(image[middle, near - 1, 0])]
        result: list[Percept] = [
            ("direction", self._DIRECTIONS[int(observation["direction"])]),
            ("mission", Text(observation["mission"])),
            ("ahead", ahead),
        ]
        if ahead == "door":
            result.append(("door_ahead", self._door_states[int(image[middle, near - 1, 2])]))
        for name, column in (("left", middle - 1), ("right", middle + 1)):
            result.append(("beside", name, self._types[int(image[column, near, 0])]))
        for column, row in _cells(image[:, :, 0]):
            kind = self._types[int(image[column, row, 0])]
            if kind in ("unseen", "empty", "wall", "floor"):
                continue
            color = self._colors[int(image[column, row, 1])]
            if (column, row) == (middle, near):
                result.append(("carrying", kind, color))
            else:
                result.append(("sees", kind, color, near - row, column - middle))
        return result

    def state(self, observation: Any) -> str:
        digest = hashlib.blake2b(observation["image"].tobytes(), digest_size=12)
        digest.update(f"{int(observation['direction'])} {observation['mission']}".encode())
        return digest.hexdigest()


def _cells(array: Any) -> Iterator[tuple[int, int]]:
    rows, columns = array.shape
    return ((row, column) for row in range(rows) for column in range(columns))


_BY_CLASS: dict[str, type[Perception]] = {
    "FrozenLakeEnv": FrozenLake,
    "CliffWalkingEnv": CliffWalking,
    "TaxiEnv": Taxi,
    "MiniGridEnv": MiniGrid,
}


def find_perception(env: Any) -> Perception:
    """Return the percepts of an environment; raise BadInput if it has none."""
    for kind in type(env.unwrapped).__mro__:
        if kind.__name__ in _BY_CLASS:
            return _BY_CLASS[kind.__name__](env)
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    raise BadInput(
        f"BDI agents have no percepts in {name!r}. They act in FrozenLake, CliffWalking, Taxi and the environments of "
        "MiniGrid."
    )
