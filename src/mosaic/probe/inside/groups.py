"""Decides which environments of a process are trained on and which are only evaluated on.

Environments created by the same call, such as those of one vector environment, are a group. The first group that is
stepped is trained on. Another one is evaluated on if a function with such a name steps it, or if it takes whole
episodes between steps of training; it is trained on if the first is stepped between its first two steps.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from contextlib import suppress
from typing import Any, NamedTuple, Tuple

from mosaic.probe.inside.core import Probe, current_probe
from mosaic.probe.inside.hooks import replace_method, report_failure

_EVALUATING_FUNCTION = re.compile(r"(?:^|_)(?:eval|test|valid)", re.IGNORECASE)
_MAX_FRAMES = 50
EVALUATION, PAUSED_TRAINING, UNKNOWN = "evaluation", "paused_training", "unknown"
"""What an environment in another process is used for now; training, unless it is marked otherwise."""

Place = Tuple[Tuple[int, int], ...]
"""The code and the position in it of every calling frame."""
_groups: dict[Place, EnvGroup] = {}


class EnvGroup:
    """Environments with the same purpose, and their steps and episodes while the purpose is unknown."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.is_evaluation: bool | None = None
        self.counter: Any = self
        """The object whose `steps` its steps are added to."""
        self.steps = 0
        self._episodes: list[tuple[int, float, int, int]] = []
        self._trained_steps = -1
        self._is_apart = False
        """Whether its last two steps had no training between them. Known of vector environments with processes only."""
        self.child_indices: list[int] = []
        """Of environments in other processes, which report their episodes themselves."""
        self.mark: ChildMark | None = None
        """What these processes can read."""

    def forget(self) -> None:
        """Forget what the parent of a forked process has counted."""
        self.steps = 0
        self._episodes = []

    def on_episode_start(self) -> None:
        """Decide at the first step of an episode, if it shows the purpose."""
        is_first = not self.probe.has_training_group
        if self.probe.is_evaluating or (
            (not is_first or is_worker_process())
            and any(_EVALUATING_FUNCTION.search(frame.f_code.co_name) for frame in calling_frames())
        ):
            self.decide(True)
        elif is_first:
            self.decide(False)

    def add_episode(self, index: int, episodic_return: float, length: int, step: int) -> None:
        if self.is_evaluation is None:
            self.settle()
        if self.is_evaluation is None:
            self._episodes.append((index, episodic_return, length, self.probe.steps))
        elif self.is_evaluation or self.probe.is_evaluating:
            self.probe.add_evaluation_episode(episodic_return, length, self.probe.steps)
        else:
            self.probe.add_episode(index, episodic_return, length, step)

    def record_vector_step(self, result: Any) -> None:
        """Count a step of a vector environment, given what it has returned."""
        probe = self.probe
        try:
            if self.is_evaluation is False and self.mark is None and not probe.is_evaluating:
                probe.steps += len(result[1])
            else:
                self._count_apart(len(result[1]))
            if self.child_indices:  # else the environments themselves do that
                probe.tick()
        except Exception as error:
            report_failure("environments", error)

    def _count_apart(self, count: int) -> None:
        """Count steps that are not training, or may not be."""
        probe = self.probe
        if self.is_evaluation is None:
            has_trained, self._trained_steps = probe.steps != self._trained_steps, probe.steps
            if has_trained or not self.steps:
                self.on_episode_start()
            if self.is_evaluation is None and self.child_indices:
                self._compare_steps(has_trained)
        self._mark_children()
        counter = probe.evaluation if probe.is_evaluating else self.counter
        counter.steps += count

    def _compare_steps(self, has_trained: bool) -> None:
        """Decide without seeing episodes: is there training between any two steps, or only between many of them?"""
        if has_trained and self.steps:
            self.decide(self._is_apart)
        self._is_apart = self.steps > 0 and not has_trained

    def settle(self) -> None:
        """Decide if training has continued after an episode of this group."""
        if self.is_evaluation is None:
            if self._episodes and self.probe.steps != self._episodes[-1][3]:
                self.decide(True)
        elif self.steps:  # counted between the decision and the next check of it
            self.counter.steps += self.steps
            self.steps = 0

    def decide(self, is_evaluation: bool) -> None:
        if self.is_evaluation is not None:
            return
        self.is_evaluation = is_evaluation
        self.counter = self.probe.evaluation if is_evaluation else self.probe
        if not is_evaluation:
            self.probe.has_training_group = True
        self.settle()
        for index, episodic_return, length, step in self._episodes:
            if is_evaluation:
                self.probe.add_evaluation_episode(episodic_return, length, step)
            else:
                self.probe.add_episode(index, episodic_return, length, self.probe.steps)
        self._episodes = []
        self._mark_children()

    def train(self) -> None:
        """Decide for training, also if it was evaluated on before."""
        if self.is_evaluation:
            self.is_evaluation = None
        self.decide(False)
        self._mark_children()

    def _mark_children(self) -> None:
        """Let the processes of its environments know what they are used for, and the current step of training."""
        purpose = EVALUATION if self.is_evaluation else UNKNOWN if self.is_evaluation is None else PAUSED_TRAINING
        is_training = self.is_evaluation is False and not self.probe.is_evaluating
        mark = None if is_training else ChildMark(purpose, 0 if purpose == UNKNOWN else self.probe.steps)
        if mark == self.mark:
            return
        self.mark = mark
        for index in self.child_indices:
            path = _mark_path(self.probe, index)
            with suppress(OSError):
                if mark is None:
                    os.remove(path)
                    continue
                with open(path + ".new", "w", encoding="utf-8") as file:
                    file.write(f"{mark.purpose} {mark.step}")
                os.replace(path + ".new", path)


class ChildMark(NamedTuple):
    """What an environment in another process is used for, if it is not training."""

    purpose: str
    step: int
    """Steps of training."""


def _mark_path(probe: Probe, index: int) -> str:
    return os.path.join(probe.run_dir, f".evaluated-{index}")


def read_mark(probe: Probe, index: int) -> ChildMark | None:
    try:
        with open(_mark_path(probe, index), encoding="utf-8") as file:
            purpose, step = file.read().split()
            return ChildMark(purpose, int(step))
    except OSError:
        return None


def is_worker_process() -> bool:
    """Return whether multiprocessing has started this process."""
    module: Any = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def calling_place() -> Place:
    return tuple((id(frame.f_code), frame.f_lasti) for frame in calling_frames())


def group_at(place: Place) -> EnvGroup:
    """Return the group of environments that were created at a place."""
    if place not in _groups:
        probe = current_probe()
        group = _groups[place] = EnvGroup(probe)
        probe.groups.append(group)
    return _groups[place]


def call_as_evaluation(owner: Any, name: str) -> None:
    """Patch `owner.name`: all that is stepped during its calls is evaluation."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        probe = current_probe()
        previous, probe.is_evaluating = probe.is_evaluating, True
        try:
            return original(*args, **kwargs)
        finally:
            probe.is_evaluating = previous

    replace_method(owner, name, evaluate)


def calling_frames() -> Any:
    """Yield the frames of the script and its libraries, innermost first."""
    frame: Any = sys._getframe(1)
    own = os.path.dirname(__file__)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        if not frame.f_code.co_filename.startswith(own):
            yield frame
        frame = frame.f_back
