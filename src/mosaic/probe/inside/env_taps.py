"""Records single environments: episodes, seeds, and a lane for their frames.

Nothing is wrapped: the methods of their classes are patched, and a table by identity holds the recorded instances. So
an environment keeps its type and can be copied and pickled. Steps are counted at the outermost wrapper: what the script
itself steps may skip frames below it.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

from mosaic.probe.inside.core import OWN, Probe, current_probe
from mosaic.probe.inside.discovery import forget_creation, is_in_constructor, is_part_of_recorded, taps
from mosaic.probe.inside.groups import UNKNOWN, EnvGroup
from mosaic.probe.inside.hooks import call_before, replace_method, report_failure

POLL_S = 0.05
WATCHED_POLL_S = 0.002
MAX_LANES = 64
"""Further environments have no lane."""
MAX_CURVES = 16
"""Further agents and components of a reward have no curve."""

_METHODS = ("step", "reset")
_LIBRARIES = ("gymnasium.", "gym.", "stable_baselines3.common.monitor")
_UNEQUAL_WRAPPERS = ("AtariPreprocessing", "MaxAndSkipObservation", "Autoreset", "AutoResetWrapper")
"""The wrappers of these libraries whose `step` is not one step of the environment inside."""

_MAX_HELPERS = 2
"""Functions that the `step` of a wrapper may call one inside the other to step the environment inside."""
_OWN_FRAMES = 4
"""`find_outermost`, its callers `count_at_outermost` and `poll`, and the patched `step`."""

_counted: dict[int, CountedWrapper] = {}
_counting_classes: set[type] = set()


class EnvTap:
    """Records one environment: its current episode and its lane."""

    def __init__(self, env: Any, index: int, num_envs: int, group: EnvGroup | None, vector_size: int) -> None:
        self.probe = current_probe()
        self.group = group
        """None in a process that steps environments for another, which counts the steps."""
        self.counter: Any = self.probe if group is None else group.counter
        """The object whose `steps` is incremented by each step, if nothing else counts them."""
        self.wrapper: CountedWrapper | None = None
        """The wrapper that counts the steps instead, if any."""
        self.is_evaluated = False
        """Whether the episode is evaluation, whatever its group is used for. Unknown of those in a vector."""
        self.is_in_vector = False
        """Whether a vector environment counts the steps instead."""
        self.late_steps = 0
        """Number of steps that are counted after a step of this environment, instead of it."""
        if vector_size:
            self.join_vector(vector_size)
        self._first_step = 0
        """Steps of training at the first step of the episode, or before it."""
        self._seed: Any = None
        self.kind = type(env)
        """The class whose `step` counts: an inherited `step` that it calls is not counted again."""
        self.index = index
        self.episode = 1
        self.length = 0
        self.total: Any = 0.0
        self.next_poll_at = 0.0
        """When to check again whether a frame is due or values are to be written."""
        self.frames: Any = None
        self.has_truncation: bool | None = None
        """Whether `step` returns five values, as gymnasium's does; not four. Known after the first step."""
        self.was_reset = False
        identity = id(env)
        self.reference = weakref.ref(env, lambda _: _remove_tap(identity, self))
        if "frames" in self.probe.parts and index < MAX_LANES:
            self.frames = make_frame_tap(env, index, num_envs, self.probe)

    @staticmethod
    def patch_step(kind: Any) -> None:
        """Patch the method of a class that takes a step, to record it."""
        _patch_step(kind)

    def join_vector(self, vector_size: int) -> None:
        self.is_in_vector = True
        self.late_steps = vector_size
        self.counter = None
        if self.wrapper is not None:
            self.wrapper.close()

    def poll(self, now: float, reward: Any) -> None:
        """Publish a due frame and flush due values; called at intervals and at the first step of an episode."""
        frames, interval_s, is_undecided = self.frames, POLL_S, False
        if self.length < 3:
            if self.group is not None:
                is_undecided = self._check_purpose(self.group)
            if self.length == 1 and not self.is_in_vector:
                self._count_at_outermost()
        if frames is not None:
            if frames.is_due():
                frames.publish_frame(self.episode, self.length, _sum(reward), _sum(self.total))
            if frames.lane.is_watched:
                interval_s = WATCHED_POLL_S
        self.next_poll_at = 0.0 if is_undecided and self.length == 1 else now + interval_s
        if now >= self.probe.next_flush_at:
            self.probe.flush(now)

    def _check_purpose(self, group: EnvGroup) -> bool:
        """Find out what the episode is for, and count its steps as that; return whether its group is undecided.

        If there is training between the first two steps of an episode, they are training too.
        """
        probe, counter = self.probe, self.counter
        if self.length == 1:
            if counter is not None:
                counter.steps -= 1  # the running step, which belongs to what is decided now
            if not self.is_in_vector:
                self.is_evaluated = group.start_episode()
            elif group.is_evaluation is None:
                group.start_episode()
        elif group.is_evaluation is None and not self.is_evaluated and probe.steps != self._first_step:
            group.decide(False)
        if not self.is_in_vector:
            target = probe.evaluation if self.is_evaluated else group.counter
            if self.wrapper is not None:
                self.wrapper.counter = target
            else:
                self.counter = target
                target.steps += self.length == 1
        self._first_step = probe.steps
        return group.is_evaluation is None

    def _count_at_outermost(self) -> None:
        """Count at the wrapper that the script steps, from the running step on."""
        wrapper = self.wrapper
        outer, is_stepping = find_outermost(self.reference())
        if (outer is None and wrapper is None) or (
            wrapper is not None and outer is not None and wrapper.reference() is outer
        ):
            return
        if wrapper is not None:
            wrapper.close()
            self.counter, self.wrapper, self.late_steps = wrapper.counter, None, 0
            self.counter.steps += 1
        if outer is not None:
            wrapper = self.wrapper = CountedWrapper(outer, self.counter)
            wrapper.is_stepped = is_stepping
            self.counter, self.late_steps = None, 1
            if wrapper.is_running_step_counted or not is_stepping:
                wrapper.counter.steps -= 1

    @property
    def is_training(self) -> bool:
        """Whether the episode is known to be training."""
        group = self.group
        if group is None or group.is_evaluation is not False or self.probe.is_evaluating:
            return False
        return not (group.is_evaluated_on if self.is_in_vector else self.is_evaluated)

    def finish_episode(self, is_cut: bool = False) -> None:
        """Record the episode; `is_cut`: it was not over, but the script has reset the environment."""
        probe, group = self.probe, self.group
        if "metrics" in probe.parts:
            if type(self.total) is not float:
                self.total = self._record_components(self.total)
            if group is None:
                self._add_episode_of_child()
            else:
                is_evaluated = group.is_evaluated_on if self.is_in_vector else self.is_evaluated
                row = self.index, self.total, self.length, probe.steps + self.late_steps
                group.add_episode(row, is_evaluated, is_cut)
        self.start_episode()

    def _record_components(self, total: Any) -> float:
        """Return the sum of a return with several components, each of which has a curve of its own."""
        if getattr(total, "size", 1) == 1 or not hasattr(total, "tolist"):
            return float(total.item() if hasattr(total, "item") else total)
        components = total.reshape(-1).tolist()
        if self.is_training:
            for index, component in enumerate(components[:MAX_CURVES]):
                self.probe.add_scalar(OWN, f"rewards/{index}/episodic_return", component, self.probe.steps)
        return float(sum(components))

    def _add_episode_of_child(self) -> None:
        probe, mark = self.probe, self.probe.read_mark()
        if mark is not None and mark.purpose != UNKNOWN:
            probe.add_evaluation_episode(self.total, self.length, mark.step)
            probe.steps = self._first_step  # without those of the evaluation
        else:
            step = (probe.steps + self.late_steps) * probe.num_envs
            row = probe.add_episode(self.index, self.total, self.length, step)
            if mark is not None:
                probe.unmarked_rows.append(row)
        self._first_step = probe.steps

    def start_episode(self) -> None:
        self.episode += 1
        self.length = 0
        self.total = 0.0
        group = self.group
        if not self.is_in_vector or group is None or group.is_evaluation is None:
            self.next_poll_at = 0.0  # to check where and for what the first step is taken

    def report_environment(self, env: Any, seed: Any = None) -> None:
        """Write the environment's id and its seed to the journal."""
        if seed is not None and seed == self._seed:
            return
        self._seed = seed
        self.probe.write_event("environment", env=self.index, env_id=env_id_of(env), seed=json_seed(seed))

    def close(self) -> None:
        if self.frames is not None:
            self.frames.close()
            self.frames = None


def _as_array(reward: Any) -> Any:
    """Convert a reward whose components are a list or a tuple."""
    import numpy

    return numpy.asarray(reward, dtype=float)


def _sum(reward: Any) -> float:
    """Return a reward for the display of a frame."""
    if type(reward) in (list, tuple):
        return float(sum(reward))
    return float(reward.sum() if hasattr(reward, "sum") else reward)


def make_frame_tap(env: Any, index: int, num_envs: int, probe: Probe) -> Any:
    try:
        from mosaic.base.fastlane import FrameTap, LaneWriter, lanes_folder

        lane = LaneWriter(lanes_folder(probe.run_dir), index, lane_count=min(num_envs, MAX_LANES))
        return FrameTap(env, lane, warn=lambda text: probe.warn(text, "frames_off"))
    except Exception as error:  # no numpy, no room, no permission: training continues without frames
        report_failure("frames", error)
        return None


def env_id_of(env: Any) -> str:
    """Return the registered id, the name that PettingZoo gives, or the class of an environment."""
    core = getattr(env, "unwrapped", env)
    registered_id = getattr(getattr(env, "spec", None), "id", None)
    name = (getattr(core, "metadata", None) or {}).get("name")
    return str(registered_id or name or type(core).__name__)


def json_seed(seed: Any) -> Any:
    try:
        return None if seed is None else int(seed)
    except (TypeError, ValueError):
        return str(seed)[:100]


def take_index(count: int = 1) -> int:
    """Return the first of the next indices of environments."""
    probe = current_probe()
    first, probe.next_index = probe.next_index, probe.next_index + count
    return first


def _remove_tap(identity: int, tap: EnvTap) -> None:
    if taps.get(identity) is tap:
        del taps[identity]
        try:
            tap.close()
        except Exception as error:
            report_failure("frames", error)


def tap_env(
    env: Any,
    index: int,
    num_envs: int,
    group: EnvGroup | None,
    vector_size: int = 0,
    *,
    seed: Any = None,
    tap_class: Any = EnvTap,
) -> None:
    """Start recording an environment. One without `step` is ignored."""
    if not hasattr(type(env), "step") or id(env) in taps:
        return
    kind: Any = type(env)
    _patch_class(kind, tap_class)
    tap = taps[id(env)] = tap_class(env, index, num_envs, group, vector_size)
    forget_creation(env)  # what it wraps is recorded if the script resets that itself
    tap.report_environment(env, seed)
    current_probe().has_environments = True


def find_tap(env: Any) -> EnvTap | None:
    """Return the tap of an environment, or of the one that it wraps."""
    return next((taps[id(inner)] for inner in wrapped_envs(env) if id(inner) in taps), None)


@functools.lru_cache(maxsize=None)
def _patch_class(kind: type, tap_class: type[EnvTap]) -> None:
    tap_class.patch_step(kind)
    if hasattr(kind, "reset"):
        call_before(kind, "reset", "environments", _on_reset)
    if callable(getattr(kind, "seed", None)):
        call_before(kind, "seed", "environments", _on_seed)
    if hasattr(kind, "close"):
        call_before(kind, "close", "frames", _on_close)


def _patch_step(kind: Any) -> None:
    """Patch `step`, the hot path of a training loop: a microsecond is one percent of a fast one."""
    original = kind.step
    tap_of, clock = taps.get, time.monotonic

    def step(self: Any, action: Any) -> Any:
        result = original(self, action)
        tap = tap_of(id(self))
        if tap is not None and tap.kind is kind:
            try:
                counter = tap.counter
                if counter is not None:
                    counter.steps += 1
                tap.length += 1
                try:
                    tap.total += result[1]
                except TypeError:
                    tap.total = tap.total + _as_array(result[1])
                now = clock()
                if now >= tap.next_poll_at:
                    tap.has_truncation = len(result) == 5
                    tap.poll(now, result[1])
                if result[2] or (result[3] and tap.has_truncation):
                    tap.finish_episode()
            except Exception as error:
                taps.pop(id(self), None)
                report_failure("environments", error)
        return result

    def any_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle a `step` with other arguments than one action."""
        if len(args) == 1 and not kwargs:
            return step(self, args[0])
        return original(self, *args, **kwargs)

    replace_method(kind, "step", step if takes_only(original, "action") else any_step)


def _on_reset(env: Any, *args: Any, **kwargs: Any) -> None:
    tap = taps.get(id(env))
    if tap is None:
        return
    if not tap.was_reset and not is_in_constructor():
        tap.was_reset = True
        if is_part_of_recorded(env):
            _on_close(env)
            return
    if tap.length:
        wrapper = tap.wrapper
        if tap.is_in_vector or tap.group is None or (wrapper is not None and not wrapper.is_stepped):
            tap.start_episode()  # not by the script itself, or only the wrappers have stepped since the last reset
        else:
            tap.finish_episode(is_cut=True)
    if tap.wrapper is not None:
        tap.wrapper.is_stepped = False
    if kwargs.get("seed") is not None:
        tap.report_environment(env, kwargs["seed"])


def _on_seed(env: Any, seed: Any = None, *args: Any, **kwargs: Any) -> None:
    """Handle `seed(…)` of gym before 0.26."""
    tap = taps.get(id(env))
    if tap is not None and seed is not None:
        tap.report_environment(env, seed)


def _on_close(env: Any, *args: Any, **kwargs: Any) -> None:
    tap = taps.pop(id(env), None)
    if tap is not None:
        tap.close()


# --- steps of wrappers


class CountedWrapper:
    """Adds the steps of a wrapper to a counter."""

    def __init__(self, wrapper: Any, counter: Any) -> None:
        self.counter = counter
        self.is_stepped = True
        """Whether the script has stepped it since the last reset of the environment inside."""
        self.kind: Any = type(wrapper)
        """The class whose `step` counts: an inherited `step` that it calls is not counted again."""
        self.is_running_step_counted = self.kind in _counting_classes
        """Whether a step that is running now will be counted at its end."""
        self._identity = id(wrapper)
        self.reference = weakref.ref(wrapper, lambda _: self.close())
        _counted[self._identity] = self
        _count_steps(self.kind)

    def close(self) -> None:
        if _counted.get(self._identity) is self:
            del _counted[self._identity]


def _count_steps(kind: Any) -> None:
    if kind in _counting_classes:
        return
    _counting_classes.add(kind)
    original, wrapper_of = kind.step, _counted.get

    def count(env: Any) -> None:
        wrapper = wrapper_of(id(env))
        if wrapper is not None and wrapper.kind is kind:
            wrapper.counter.steps += 1
            wrapper.is_stepped = True

    def step(self: Any, action: Any) -> Any:
        result = original(self, action)
        count(self)
        return result

    def any_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        count(self)
        return result

    replace_method(kind, "step", step if takes_only(original, "action") else any_step)


def takes_only(method: Any, argument: str) -> bool:
    """Return whether a method has no argument but one of this name."""
    code = getattr(method, "__code__", None)
    return code is not None and code.co_argcount == 2 and code.co_varnames[1] == argument and not code.co_flags & 12


def find_outermost(env: Any) -> tuple[Any, bool]:
    """Return the outermost wrapper whose `step` or `reset` steps this environment now, and whether it is `step`.

    None if that is the environment itself, or if one step of the wrapper is one of the environment.
    """
    outer, is_stepping, helpers = env, True, 0
    frame: Any = sys._getframe(_OWN_FRAMES)
    while frame is not None and helpers <= _MAX_HELPERS:
        code = frame.f_code
        helpers += 1
        if code.co_name in _METHODS and code.co_argcount:
            candidate = frame.f_locals.get(code.co_varnames[0])
            is_env = any(base.__name__ == "Env" for base in type(candidate).__mro__)
            if candidate is outer or (is_env and any(inner is outer for inner in wrapped_envs(candidate))):
                outer, is_stepping, helpers = candidate, code.co_name == "step", 0
        frame = frame.f_back
    if outer is env:
        return None, is_stepping
    for wrapper in wrapped_envs(outer):
        if wrapper is env:
            return None, is_stepping
        kind = type(wrapper)
        if not kind.__module__.startswith(_LIBRARIES) or kind.__name__ in _UNEQUAL_WRAPPERS:
            break
    return outer, is_stepping


def wrapped_envs(env: Any) -> Iterator[Any]:
    """Yield an environment, the one that it wraps, and so on."""
    while env is not None:
        yield env
        env = vars(env).get("env") if hasattr(env, "__dict__") else None
