"""A human as an actor: keys and buttons become actions."""

from __future__ import annotations

import runpy
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.play import Act, ActorChoice, Keys
from mosaic.worker.actors import Seat, Turn, action_count
from mosaic.worker.envs.families import EnvEntry, KeyBinding

MAX_WAITING_KEYS = 8
"""Keys pressed faster than the environment steps."""
_ATARI_KEYS = {"UP": "Up", "DOWN": "Down", "LEFT": "Left", "RIGHT": "Right", "FIRE": "Space"}
_RAMP = 0.25
"""The part of the way to its target that a component of a continuous action goes in one step."""


def key_bindings(entry: EnvEntry | None, names: Sequence[str]) -> tuple[KeyBinding, ...]:
    """Return the keys of an environment: of its discrete actions, by their names, or of its continuous ones.

    Atari's follow from the names of its actions: `upfire` is Up and Space.
    """
    if entry is not None and entry.keys:
        return tuple(one for one in entry.keys if (one.action in names if names else not one.action))
    bindings = []
    for name in names:
        rest, keys = name.upper(), []
        while found := next((part for part in _ATARI_KEYS if rest.startswith(part)), None):
            keys.append(_ATARI_KEYS[found])
            rest = rest.removeprefix(found)
        if keys and not rest:
            bindings.append(KeyBinding(tuple(keys), name))
    if bindings or not names or len(names) > 10:
        return tuple(bindings)
    return tuple(KeyBinding((str(index),), name) for index, name in enumerate(names))


def changed_bindings(bindings: Sequence[KeyBinding], changes: Mapping[str, Any]) -> tuple[KeyBinding, ...]:
    """Apply a person's own keys: by the text of an action, the key that means it."""
    known = {binding.text: binding for binding in bindings}
    for text, key in changes.items():
        if text not in known or not isinstance(key, str) or not key:
            expected = ", ".join(known)
            raise BadInput(f"keys: {text!r} = {key!r} is not a key of an action; the actions are {expected}.")
        old = known[text]
        known[text] = KeyBinding(tuple(key.split("+")), old.action, old.axis, old.value, old.label)
    return tuple(known.values())


class HumanActor:
    """Waits for a key in an environment with turns; in real time it acts by the keys that are held."""

    def __init__(self, choice: ActorChoice, seat: Seat) -> None:
        changes = choice.options["keys"]
        if not isinstance(changes, Mapping):
            raise BadInput(f"keys: {changes!r} is not an object; expected a key for each action, by its name.")
        self._space = seat.action_space
        self._names = seat.action_names
        self._is_real_time = seat.is_real_time
        self._is_continuous = action_count(seat.action_space) is None
        if self._is_continuous and not hasattr(seat.action_space, "low"):
            raise BadInput(f"A human cannot act in {seat.env_id}: its actions are {seat.action_space}.")
        self.bindings = changed_bindings(key_bindings(seat.entry, self._names), changes)
        idle = seat.entry.idle_action if seat.entry is not None else None
        self._idle: Any = 0 if idle is None or idle not in self._names else self._names.index(idle)
        self._down: set[str] = set()
        self._waiting: deque[Any] = deque(maxlen=MAX_WAITING_KEYS)
        self._tapped: set[str] = set()
        self._continuous = np.zeros(getattr(seat.action_space, "shape", None) or (1,), np.float32)
        self.problem = ""
        """Why the last input was not an action."""

    def receive_keys(self, keys: Keys) -> None:
        self._down = set(keys.down)
        self._tapped |= set(keys.pressed)
        if not self._is_real_time:
            for key in keys.pressed:
                held = self._down | {key}
                found = self._find_binding(held, key)
                if found is not None:
                    self._waiting.append(self._names.index(found.action))

    def receive_action(self, command: Act) -> None:
        self._waiting.append(command.action)

    def forget_input(self) -> None:
        """Drop what was entered before it was this actor's turn."""
        self._waiting.clear()
        self._tapped.clear()

    def start_episode(self, seed: int) -> None:
        self.forget_input()
        self._continuous[:] = 0

    def act(self, turn: Turn) -> Any:
        while self._waiting:
            action = self._waiting.popleft()
            problem = self._refuse(action, turn)
            self.problem = problem
            if not problem:
                return self._to_action(action)
        if not self._is_real_time:
            return None
        held = self._down | self._tapped
        self._tapped.clear()
        if self._is_continuous:
            return self._ramp(held)
        found = self._find_binding(held)
        action = self._idle if found is None else self._names.index(found.action)
        return self._idle if self._refuse(action, turn) else action

    def _find_binding(self, held: set[str], needed: str | None = None) -> KeyBinding | None:
        """Return the binding with the most keys, all of them held."""
        fitting = [
            binding
            for binding in self.bindings
            if binding.action and held.issuperset(binding.keys) and (needed is None or needed in binding.keys)
        ]
        return max(fitting, key=lambda binding: len(binding.keys), default=None)

    def _ramp(self, held: set[str]) -> np.ndarray:
        """Move each component towards what its keys mean."""
        target = np.zeros_like(self._continuous)
        for binding in self.bindings:
            if held.issuperset(binding.keys) and binding.axis < target.size:
                target.flat[binding.axis] += binding.value
        self._continuous += _RAMP * (target - self._continuous)
        return np.clip(self._continuous, self._space.low, self._space.high).astype(self._space.dtype)

    def _refuse(self, action: Any, turn: Turn) -> str:
        if isinstance(action, int) and turn.legal_actions is not None and action not in turn.legal_actions:
            name = self._names[action] if 0 <= action < len(self._names) else str(action)
            return f"{name.replace('_', ' ')} is not allowed now."
        return "" if self._space.contains(self._to_action(action)) else f"{action} is not an action."

    def _to_action(self, action: Any) -> Any:
        return np.asarray(action, self._space.dtype) if self._is_continuous else action

    def close(self) -> None:
        pass


# --- Actors that a user writes: a Python file, or a list of actions.


_SHOWN_CHARACTERS = 200


EXAMPLES = Path(__file__).parent / "script_examples"


def find_script(target: str) -> Path:
    """Return the path of a file, or that of the example with this name."""
    path = Path(target).expanduser()
    example = next((file for file in EXAMPLES.iterdir() if file.stem == target), None)
    return path if example is None or path.is_file() else example


class ScriptActor:
    """A Python file that defines `act(observation, info)`, or a file with one action per line.

    A Python file is compiled at once and executed when the first episode starts: a check runs no code of the user.
    """

    def __init__(self, choice: ActorChoice, seat: Seat) -> None:
        self._path = find_script(choice.target)
        self._name = str(choice)
        self._space = seat.action_space
        self._actions: list[Any] = []
        self._next = 0
        self._act: Callable[..., Any] | None = None
        self._reset: Callable[..., Any] | None = None
        self._is_python = self._path.suffix == ".py"
        try:
            source = self._path.read_bytes()
        except OSError as error:
            raise BadInput(f"{choice}: {self._path} cannot be read: {error.strerror or error}.") from None
        if self._is_python:
            self._check_source(source)
        else:
            self._read_actions(source, seat)

    def _check_source(self, source: bytes) -> None:
        try:
            code = compile(source, str(self._path), "exec", dont_inherit=True)
        except SyntaxError as error:
            place = "" if error.lineno is None else f", line {error.lineno}"
            raise BadInput(f"{self._name}{place}: not valid Python: {error.msg}.") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise BadInput(f"{self._name}: not valid Python: {error}.") from None
        if "act" not in code.co_names:
            raise BadInput(f"{self._name}: the file does not define act(observation, info).")

    def _read_actions(self, source: bytes, seat: Seat) -> None:
        for number, line in enumerate(source.decode(errors="replace").splitlines(), 1):
            if not line.strip():
                continue
            action = self._parse_line(line.strip(), seat.action_names)
            if action is None:
                known = ", ".join(seat.action_names) or str(seat.action_space)
                shown = line.strip()[:_SHOWN_CHARACTERS]
                raise BadInput(f"{self._name}, line {number}: {shown!r} is not an action; expected one of {known}.")
            self._actions.append(action)
        if not self._actions:
            raise BadInput(f"{self._name}: the file has no action.")

    def _parse_line(self, line: str, names: tuple[str, ...]) -> Any:
        """Return an action given by its name, or as numbers separated by spaces; None for anything else."""
        if line in names:
            return names.index(line)
        try:
            return self._to_action([float(part) for part in line.replace(",", " ").split()])
        except ValueError:
            return None

    def start_episode(self, seed: int) -> None:
        self._next = 0
        if self._is_python and self._act is None:
            names = self._call(runpy.run_path, str(self._path))
            self._act, self._reset = names.get("act"), names.get("reset")
            if not callable(self._act):
                raise MosaicError(f"{self._name}: the file does not define act(observation, info).")
        if callable(self._reset):
            self._call(self._reset)

    def act(self, turn: Turn) -> Any:
        if self._act is None:
            self._next += 1
            return self._actions[(self._next - 1) % len(self._actions)]
        returned = self._call(self._act, turn.observation, turn.info)
        action = self._to_action(returned)
        if action is None:
            shown = repr(returned)[:_SHOWN_CHARACTERS]
            raise MosaicError(f"{self._name} returned {shown}, which is not an action of {self._space}.")
        return action

    def _to_action(self, value: Any) -> Any:
        """Return what the action space takes, as numbers of its type; None if it is not an action."""
        space = self._space
        if space.shape is None:
            return value if space.contains(value) else None
        try:
            given = np.asarray(value)
            if given.dtype.kind not in "biuf" or not np.isfinite(given).all():
                return None
            with np.errstate(invalid="ignore", over="ignore"):
                converted = given.reshape(space.shape).astype(space.dtype)
        except ValueError:
            return None
        if converted.dtype.kind in "iu" and (converted != given.reshape(space.shape)).any():
            return None  # it would be rounded
        action = converted if space.shape else converted.item()
        return action if space.contains(action) else None

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            traceback.print_exception(error)
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == str(self._path)]
            place = f", line {lines[-1]}" if lines else ""
            raise MosaicError(f"{self._name}{place}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        pass
