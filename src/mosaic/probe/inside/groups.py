"""Decides which environments of a process are trained on and which are only evaluated on.

Environments created by the same call, such as those of one vector environment, are a group. An episode is evaluation
if a function with such a name steps it, unless training takes place in that function, too: what the first ones step is
training until something is stepped outside of them. Apart from that, the first group that is stepped is trained on.
Another one is evaluated on if it takes whole episodes between steps of training; it is trained on if the first is
stepped between its first two steps, or not at all for some time. Until then its episodes are recorded as training.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from typing import Any, List, NamedTuple, Tuple

from mosaic.probe.inside.core import REVOCABLE_EPISODES, Probe, current_probe
from mosaic.probe.inside.hooks import replace_method

_EVALUATING_FUNCTION = re.compile(r"(?:^|_)(?:eval|test|valid)", re.IGNORECASE)
_MAX_FRAMES = 50
EVALUATION, PAUSED_TRAINING, UNKNOWN = "evaluation", "paused_training", "unknown"
"""What an environment in another process is used for now; training, unless it is marked otherwise."""
UNDECIDED_EPISODES = 100
UNDECIDED_S = 60.0
"""A group that is stepped for longer, without a step of training meanwhile, is trained on."""

Place = Tuple[Tuple[int, int], ...]
"""The code and the position in it of every calling frame."""
Provisional = List[Tuple[List[Any], int]]
"""Episodes that may turn out to be evaluation: their row, and the steps of training before them."""
_groups: dict[Place, EnvGroup] = {}
_OWN_FOLDER = os.path.dirname(__file__)


class EnvGroup:
    """Environments with the same purpose, and their steps and episodes while the purpose is unknown."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.is_evaluation: bool | None = None
        self.is_evaluated_on = False
        """Whether a vector environment is being evaluated on, also if the group is trained on."""
        self.needs_check = True
        """Whether that must be found out at the next step of a vector environment."""
        self.counter: Any = self
        """The object whose `steps` its steps are added to."""
        self.steps = 0
        self._episodes: Provisional = []
        self._trained_steps = -1
        self._undecided_since = (-1, 0.0)
        """Steps of training, and the time at which they were seen first."""
        self._is_apart = False
        """Whether its last two steps had no training between them. Known of vector environments with processes only."""
        self.child_indices: list[int] = []
        """Of environments in other processes, which report their episodes themselves."""
        self.mark: ChildMark | None = None
        """What these processes can read."""

    def forget(self) -> None:
        """Forget what is recorded as evaluation, or what the parent of a forked process has counted."""
        self.steps = 0
        self._episodes = []
        if not self.is_evaluation:
            self.is_evaluation, self.counter, self.needs_check = None, self, True

    def start_episode(self) -> bool:
        """Return whether the episode that starts now is evaluation; decide on the group if that shows its purpose."""
        probe = self.probe
        names = _evaluating_functions()
        if names is _NONE is probe.training_functions:  # almost always
            pass
        elif probe.training_functions is None:
            probe.training_functions = _NONE if is_worker_process() else names
        elif names < probe.training_functions:
            probe.training_functions = names
            _revoke_training(self)
        if probe.is_evaluating or not names <= probe.training_functions:
            return True
        if self.is_evaluation is None:
            if not probe.has_training_group:
                self.decide(False)
            elif probe.is_complete:
                self.decide(True)
        return self.is_evaluation is True

    def add_episode(self, row: tuple[int, float, int, int], is_evaluated: bool, is_cut: bool = False) -> None:
        """Record an episode: index of its environment, return, length and step."""
        probe = self.probe
        if self.is_evaluation is None:
            self.settle()
        if is_evaluated or self.is_evaluation or probe.is_evaluating:
            probe.add_evaluation_episode(row[1], row[2], probe.steps, is_cut)
            return
        is_undecided = self.is_evaluation is None
        recorded = probe.add_episode(*row[:3], row[3] + (self.steps if is_undecided else 0), is_cut)
        if is_undecided:
            self._episodes.append((recorded, probe.steps))
            if len(self._episodes) >= UNDECIDED_EPISODES:
                self.decide(False)
        if probe.training_functions and probe.revocable is not None:
            probe.revocable.append((recorded, 0))
            if len(probe.revocable) > REVOCABLE_EPISODES:  # then it is training, whatever its name
                probe.revocable = None

    def record_vector_step(self, result: Any) -> None:
        """Count a step of a vector environment, given what it has returned."""
        probe = self.probe
        if self.is_evaluation is False and not self.needs_check and self.mark is None and not probe.is_evaluating:
            probe.steps += len(result[1])
        else:
            self._count_apart(len(result[1]))
        if self.child_indices:  # else the environments themselves do that
            probe.tick()

    def _count_apart(self, count: int) -> None:
        """Count steps that are not training, or may not be."""
        probe = self.probe
        has_trained, self._trained_steps = probe.steps != self._trained_steps, probe.steps
        self.is_evaluated_on = self.is_evaluation is True or self.start_episode()
        self.needs_check = self.is_evaluated_on  # until that function returns
        if self.is_evaluation is None and not self.is_evaluated_on and self.child_indices:
            self._compare_steps(has_trained)
        self._mark_children()
        counter = probe.evaluation if self.is_evaluated_on else self.counter
        counter.steps += count

    def _compare_steps(self, has_trained: bool) -> None:
        """Decide without seeing episodes: is there training between any two steps, or only between many of them?"""
        if has_trained and self.steps:
            self.decide(self._is_apart)
        self._is_apart = self.steps > 0 and not has_trained

    def settle(self) -> None:
        """Decide if training has continued after an episode of this group, or not for long."""
        probe = self.probe
        if self.is_evaluation is None:
            if self._episodes and probe.steps != self._episodes[-1][1]:
                self.decide(True)
            elif self.steps and self._undecided_since[0] != probe.steps:
                self._undecided_since = probe.steps, time.monotonic()
            elif self.steps and time.monotonic() - self._undecided_since[1] > UNDECIDED_S:
                self.decide(False)
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
        episodes, self._episodes = self._episodes, []
        has_steps = self.steps > 0
        self.settle()
        if is_evaluation and (episodes or has_steps):
            self.probe.move_to_evaluation(episodes)
        self._mark_children()

    def train(self) -> None:
        """Decide for training, also if it was evaluated on before."""
        if self.is_evaluation:
            self.is_evaluation = None
        self.decide(False)
        self._mark_children()

    def _mark_children(self) -> None:
        """Let the processes of its environments know what they are used for, and the current step of training."""
        is_known = self.is_evaluation is not None or self.is_evaluated_on
        purpose = EVALUATION if self.is_evaluation else PAUSED_TRAINING if is_known else UNKNOWN
        is_training = self.is_evaluation is False and not self.is_evaluated_on and not self.probe.is_evaluating
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


def _revoke_training(stepping: EnvGroup) -> None:
    """Record as evaluation all that was recorded as training: only now, a step is taken outside of such functions."""
    probe = stepping.probe
    if probe.revocable is None:
        return
    revoked, probe.revocable = probe.revocable, []
    probe.evaluation.steps += probe.shown_steps
    probe.steps = 0
    probe.has_training_group = False
    for group in probe.groups:
        group.forget()
        if group.child_indices and group is not stepping:
            group.decide(True)
    probe.move_to_evaluation(revoked)


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


_NONE: frozenset[str] = frozenset()
_is_evaluating_name: dict[str, bool] = {}


def _evaluating_functions() -> frozenset[str]:
    """Return the names of the calling functions that say that they evaluate. Called at every start of an episode."""
    names, count, is_evaluating_name = _NONE, 0, _is_evaluating_name
    frame: Any = sys._getframe(2)
    while frame is not None and count < _MAX_FRAMES:
        code = frame.f_code
        is_evaluating = is_evaluating_name.get(code.co_name)
        if is_evaluating is None:
            is_evaluating = is_evaluating_name[code.co_name] = _EVALUATING_FUNCTION.search(code.co_name) is not None
        if is_evaluating and not code.co_filename.startswith(_OWN_FOLDER):
            names |= {code.co_name}
        frame = frame.f_back
        count += 1
    return names


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
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        if not frame.f_code.co_filename.startswith(_OWN_FOLDER):
            yield frame
        frame = frame.f_back
