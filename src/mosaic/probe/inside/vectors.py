"""Environments that are a vector by themselves, without a function for each of them."""

from __future__ import annotations

import functools
from typing import Any

from mosaic.probe.inside.core import probe
from mosaic.probe.inside.hooks import failed

_taps: dict[int, VectorTap] = {}
_patched: set[type] = set()


class VectorTap:
    def __init__(self, envs: Any) -> None:
        import numpy

        picked = probe()
        self._numpy = numpy
        self._count = int(envs.num_envs)
        self._first, picked.next_index = picked.next_index, picked.next_index + self._count
        self._totals = numpy.zeros(self._count)
        self._lengths = numpy.zeros(self._count, dtype=int)
        mode = str((getattr(envs, "metadata", None) or {}).get("autoreset_mode", ""))
        self._resets_by_a_step = "NEXT_STEP" in mode.upper()
        self._ended = numpy.zeros(self._count, dtype=bool)
        picked.has_environments = True

    def stepped(self, result: tuple[Any, ...]) -> None:
        picked = probe()
        stepping = ~self._ended if self._resets_by_a_step else True
        self._totals += result[1]
        self._lengths += stepping
        picked.steps += self._count
        ended = self._numpy.logical_or(result[2], result[3])
        if ended.any():
            for at in self._numpy.flatnonzero(ended):
                picked.episode(self._first + int(at), float(self._totals[at]), int(self._lengths[at]))
            self._totals[ended] = 0.0
            self._lengths[ended] = 0
        self._ended = ended
        picked.tick()


def tap_vector(envs: Any) -> None:
    kind: Any = type(envs)
    _taps[id(envs)] = VectorTap(envs)
    if kind in _patched:
        return
    _patched.add(kind)
    original = kind.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        found = _taps.get(id(self))
        if found is not None:
            try:
                found.stepped(result)
            except Exception as error:
                _taps.pop(id(self), None)
                failed("environments", error)
        return result

    kind.step = step
