"""Actors that a user writes: a Python file, or a list of actions."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mosaic.arena.actors import Seat, Turn
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.play import ActorChoice

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
