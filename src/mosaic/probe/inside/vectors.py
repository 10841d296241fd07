"""Records vector environments that are not built from single environments."""

from __future__ import annotations

import atexit
import functools
from typing import Any

from mosaic.probe.inside.core import current_probe
from mosaic.probe.inside.groups import current_group
from mosaic.probe.inside.hooks import call_after, report_failure

_taps: dict[int, VectorTap] = {}
_patched_classes: set[type] = set()


class VectorTap:
    def __init__(self, envs: Any) -> None:
        import numpy

        probe = current_probe()
        self._group = current_group()
        self._numpy = numpy
        self._count = int(getattr(envs, "num_envs", None) or len(envs))
        self._first, probe.next_index = probe.next_index, probe.next_index + self._count
        self._totals = numpy.zeros(self._count)
        self._lengths = numpy.zeros(self._count, dtype=int)
        mode = str((getattr(envs, "metadata", None) or {}).get("autoreset_mode", ""))
        self._has_reset_step = "NEXT_STEP" in mode.upper()
        self._ended = numpy.zeros(self._count, dtype=bool)
        probe.has_environments = True

    def record_step(self, result: tuple[Any, ...]) -> None:
        probe = current_probe()
        stepping = ~self._ended if self._has_reset_step else True
        self._totals += result[1]
        self._lengths += stepping
        self._group.count_vector_step(self._count)
        ended = self._numpy.array(result[2], dtype=bool)
        if len(result) == 5:
            ended |= self._numpy.asarray(result[3], dtype=bool)
        if ended.any():
            for index in self._numpy.flatnonzero(ended) if "metrics" in probe.parts else ():
                episodic_return, length = float(self._totals[index]), int(self._lengths[index])
                self._group.add_episode(self._first + int(index), episodic_return, length, probe.steps)
            self._totals[ended] = 0.0
            self._lengths[ended] = 0
        self._ended = ended
        probe.tick()


def patch_envpool(module: Any) -> None:
    """Patch envpool, which steps all environments in one call and cannot render."""
    for name in ("make", "make_gym", "make_gymnasium"):
        if hasattr(module, name):
            call_after(module, name, "environments", _tap_envpool)


def _tap_envpool(envs: Any, *args: Any, **kwargs: Any) -> None:
    if id(envs) not in _taps:  # one make function may call another
        tap_vector(envs)
        report_no_frames()


def report_no_frames() -> None:
    """Create a lane that reports to viewers that there are no frames."""
    probe = current_probe()
    if "frames" in probe.parts:
        from mosaic.fastlane import LaneWriter, lanes_folder
        from mosaic.fastlane.tap import NO_FRAME_REASON

        lane = LaneWriter(lanes_folder(probe.run_dir), 0)
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
        tap = _taps.get(id(self))
        if tap is not None:
            try:
                tap.record_step(result)
            except Exception as error:
                _taps.pop(id(self), None)
                report_failure("environments", error)
        return result

    kind.step = step
