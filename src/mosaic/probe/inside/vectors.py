"""Records vector environments that are not built from single environments."""

from __future__ import annotations

import atexit
import functools
import time
import weakref
from typing import Any

from mosaic.probe.inside.core import current_probe
from mosaic.probe.inside.discovery import forget_creation, taps, watch_class
from mosaic.probe.inside.env_taps import (
    POLL_S,
    WATCHED_POLL_S,
    env_id_of,
    json_seed,
    make_frame_tap,
    take_index,
)
from mosaic.probe.inside.groups import Place, calling_place, group_at
from mosaic.probe.inside.hooks import call_after, call_before


class VectorTap:
    """Records all environments of a vector environment. If it renders, the last of them is shown."""

    def __init__(self, envs: Any, place: Place) -> None:
        import numpy

        probe = current_probe()
        self.group = group_at(place)
        self.kind = type(envs)
        self._numpy = numpy
        self._count = int(getattr(envs, "num_envs", None) or len(envs))
        self.first = take_index(self._count)
        self._totals = numpy.zeros(self._count)
        self._lengths = numpy.zeros(self._count, dtype=int)
        mode = str((getattr(envs, "metadata", None) or {}).get("autoreset_mode", ""))
        self._has_reset_step = "NEXT_STEP" in mode.upper()
        self._ended = numpy.zeros(self._count, dtype=bool)
        self._episode = 1
        """Of the last environment."""
        self._next_poll_at = 0.0
        self._frames = make_frame_tap(envs, self.first, 1, probe) if "frames" in probe.parts else None
        atexit.register(self.close)
        identity = id(envs)
        self.reference = weakref.ref(envs, lambda _: taps.pop(identity, None))
        probe.has_environments = True

    def close(self) -> None:
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def start_episodes(self) -> None:
        self.group.needs_check = True
        self._totals[:] = 0.0
        self._lengths[:] = 0
        self._ended[:] = False

    def record_step(self, result: tuple[Any, ...]) -> None:
        probe = current_probe()
        stepping = ~self._ended if self._has_reset_step else True
        self._totals += result[1]
        self._lengths += stepping
        self.group.record_vector_step(result)
        now = time.monotonic()
        if self._frames is not None and now >= self._next_poll_at:
            self._next_poll_at = now + (WATCHED_POLL_S if self._frames.lane.is_watched else POLL_S)
            if self._frames.is_due():
                self._frames.publish_frame(self._episode, int(self._lengths[-1]), result[1][-1], self._totals[-1])
        ended = self._numpy.array(result[2], dtype=bool)
        if len(result) == 5:
            ended |= self._numpy.asarray(result[3], dtype=bool)
        if ended.any():
            for index in self._numpy.flatnonzero(ended) if "metrics" in probe.parts else ():
                episodic_return, length = float(self._totals[index]), int(self._lengths[index])
                row = self.first + int(index), episodic_return, length, probe.steps
                self.group.add_episode(row, self.group.is_evaluated_on)
            self._totals[ended] = 0.0
            self._lengths[ended] = 0
            self._episode += int(ended[-1])
        self._ended = ended
        probe.tick()


def patch_vector_base(module: Any) -> None:
    """Patch gymnasium's VectorEnv, or gym's, for those that a class implements as a whole."""
    wrapper = getattr(module, "VectorWrapper", None) or getattr(module, "VectorEnvWrapper", ())
    watch_class(module.VectorEnv, wrapper, tap_vector)


def patch_envpool(module: Any) -> None:
    """Patch envpool, which steps all environments in one call and cannot render."""
    for name in ("make", "make_gym", "make_gymnasium"):
        if hasattr(module, name):
            call_after(module, name, "environments", _tap_envpool)


def _tap_envpool(envs: Any, *args: Any, **kwargs: Any) -> None:
    forget_creation(envs)
    if id(envs) not in taps:  # one make function may call another
        env_id = args[0] if args else kwargs.get("task_id", "")
        seed = kwargs.get("seed", (getattr(envs, "config", None) or {}).get("seed"))
        tap_vector(envs, calling_place(), seed, str(env_id))


def tap_vector(envs: Any, place: Place, seed: Any, env_id: str = "") -> None:
    kind: Any = type(envs)
    _patch_class(kind)
    tap = taps[id(envs)] = VectorTap(envs, place)
    first_seed = json_seed(seed[0] if isinstance(seed, (list, tuple)) and seed else seed)
    current_probe().write_event("environment", env=tap.first, env_id=env_id or env_id_of(envs), seed=first_seed)


@functools.lru_cache(maxsize=None)
def _patch_class(kind: Any) -> None:
    call_after(kind, "step", "environments", functools.partial(_on_step, kind))
    for name, handle in (("reset", _on_reset), ("close", _on_close)):
        if hasattr(kind, name):
            call_before(kind, name, "environments", handle)


def _on_step(kind: Any, result: Any, envs: Any, *args: Any, **kwargs: Any) -> None:
    tap = taps.get(id(envs))
    if tap is not None and tap.kind is kind:
        tap.record_step(result)


def _on_reset(envs: Any, *args: Any, **kwargs: Any) -> None:
    tap = taps.get(id(envs))
    if tap is not None and not args:  # envpool resets single environments by their numbers
        tap.start_episodes()


def _on_close(envs: Any, *args: Any, **kwargs: Any) -> None:
    tap = taps.pop(id(envs), None)
    if tap is not None:
        tap.close()
