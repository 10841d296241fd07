"""How busy the GPUs are that runs may get, by all programs of the machine; measured while clients ask for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mosaic.contracts.views import GpuSample
from mosaic.keeper.gpus import PERIOD_S, Read
from mosaic.trainer.gpus import visible_devices

UNUSED_S = 15.0
"""The measurements end after this time without a request: they would keep the driver of an idle machine awake."""
MAX_AGE_S = 10.0
"""An older sample is not shown: the driver hangs."""
FIRST_SAMPLE_TIMEOUT_S = 2.0


class GpuUsage:
    """Measures in a thread of its own, because a driver that hangs does not return."""

    def __init__(self, count: int, open_read: Callable[[], Read | None]) -> None:
        self._count = count
        self._open_read = open_read
        self._lock = threading.Lock()
        self._is_measuring = False
        self._asked_at = 0.0
        self._sampled_at = 0.0
        self._samples: tuple[GpuSample | None, ...] = ()
        self._has_sample = threading.Event()

    def newest(self) -> tuple[GpuSample | None, ...]:
        """Return a sample of each GPU, by index; nothing where they cannot be measured."""
        if not self._count:
            return ()
        with self._lock:
            self._asked_at = time.monotonic()
            is_first = not self._is_measuring
            if is_first:
                self._is_measuring = True
                self._has_sample.clear()
                threading.Thread(target=self._measure, name="gpu-usage", daemon=True).start()
        if is_first:  # later requests do not wait for a driver that hangs
            self._has_sample.wait(FIRST_SAMPLE_TIMEOUT_S)
        return self._samples if time.monotonic() - self._sampled_at < MAX_AGE_S else ()

    def _measure(self) -> None:
        read = self._open_read()
        while read is not None and (machine := read()):
            self._samples = tuple(
                GpuSample.model_validate(machine[number]) if number is not None and number < len(machine) else None
                for number in device_numbers(self._count)
            )
            self._sampled_at = time.monotonic()
            self._has_sample.set()
            time.sleep(PERIOD_S)
            with self._lock:
                if time.monotonic() - self._asked_at > UNUSED_S:
                    self._is_measuring = False
                    return
        self._has_sample.set()  # there will be none


def device_numbers(count: int) -> list[int | None]:
    """Return NVIDIA's number of each GPU that runs may get; None for one that is named by something else."""
    devices = visible_devices() or [str(number) for number in range(count)]
    return [int(device) if device.isdecimal() else None for device in devices[:count]]
