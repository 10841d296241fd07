"""Environments that are a vector by themselves, without a function for each of them."""

from __future__ import annotations

import atexit
import functools
from typing import Any

from mosaic.probe.inside.core import current_probe
from mosaic.probe.inside.hooks import report_failure

_taps: dict[int, VectorTap] = {}
_patched_classes: set[type] = set()


class VectorTap:
    def __init__(self, envs: Any) -> None:
        import numpy

        picked = current_probe()
        self._numpy = numpy
        self._count = int(getattr(envs, "num_envs", None) or len(envs))
        self._first, picked.next_index = picked.next_index, picked.next_index + self._count
        self._totals = numpy.zeros(self._count)
        self._lengths = numpy.zeros(self._count, dtype=int)
        mode = str((getattr(envs, "metadata", None) or {}).get("autoreset_mode", ""))
        self._has_reset_step = "NEXT_STEP" in mode.upper()
        self._ended = numpy.zeros(self._count, dtype=bool)
        picked.has_environments = True

    def record_step(self, result: tuple[Any, ...]) -> None:
        picked = current_probe()
        stepping = ~self._ended if self._has_reset_step else True
        self._totals += result[1]
        self._lengths += stepping
        picked.steps += self._count
        ended = self._numpy.array(result[2], dtype=bool)
        if len(result) == 5:
            ended |= self._numpy.asarray(result[3], dtype=bool)
        if ended.any():
            for at in self._numpy.flatnonzero(ended) if "metrics" in picked.parts else ():
                picked.add_episode(self._first + int(at), float(self._totals[at]), int(self._lengths[at]))
            self._totals[ended] = 0.0
            self._lengths[ended] = 0
        self._ended = ended
        picked.tick()


def patch_envpool(module: Any) -> None:
    """envpool steps all environments in one call, and draws none of them."""
    for name in ("make", "make_gym", "make_gymnasium"):
        if hasattr(module, name):
            setattr(module, name, _wrap_make(getattr(module, name)))


def _wrap_make(original: Any) -> Any:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        envs = original(*args, **kwargs)
        try:
            if id(envs) not in _taps:  # one kind of make may call another
                tap_vector(envs)
                report_no_frames()
        except Exception as error:
            report_failure("environments", error)
        return envs

    return make


def report_no_frames() -> None:
    """So that who watches is told, and does not wait."""
    picked = current_probe()
    if "frames" in picked.parts:
        from mosaic.fastlane import LaneWriter, lanes_folder
        from mosaic.fastlane.tap import NO_FRAME_REASON

        lane = LaneWriter(lanes_folder(picked.run_dir), 0)
        lane.mark_unavailable(NO_FRAME_REASON)
        atexit.register(lane.close)


def tap_vector(envs: Any) -> None:
    kind: Any = type(envs)
    _taps[id(envs)] = VectorTap(envs)
    if kind in _patched_classes:
        return
    _patched_classes.add(kind)
    original = kind.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        found = _taps.get(id(self))
        if found is not None:
            try:
                found.record_step(result)
            except Exception as error:
                _taps.pop(id(self), None)
                report_failure("environments", error)
        return result

    kind.step = step
