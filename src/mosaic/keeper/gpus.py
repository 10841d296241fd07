"""Samples GPU usage through NVIDIA's management library, loaded with ctypes.

A hung driver does not return, so a separate thread queries it; the keeper's loop uses the newest sample.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

_LIBRARY = "libnvidia-ml.so.1"
PERIOD_S = 2.0
_MB = 2**20
_MAX_NAME_BYTES = 96
Read = Callable[[], list[dict[str, float]]]


def can_see_gpus(env: dict[str, str]) -> bool:
    """Return whether the run may use a GPU; if not, the library (larger than the keeper itself) is not loaded."""
    return env.get("CUDA_VISIBLE_DEVICES", "all").strip() not in ("", "-1")


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    """`nvmlMemory_v2_t`, which does not count memory reserved by the driver as used."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class GpuMonitor:
    """Replaces `newest` as a whole; it stays empty without a recent NVIDIA driver."""

    def __init__(self) -> None:
        self.newest: list[dict[str, float]] = []

    def start(self) -> None:
        read = open_reader()
        if read is not None:
            threading.Thread(target=self._follow, args=(read,), name="gpus", daemon=True).start()

    def _follow(self, read: Read) -> None:
        while sample := read():
            self.newest = sample
            time.sleep(PERIOD_S)


def open_reader() -> Read | None:
    """Return a function that reads all GPUs of the machine, by NVIDIA's index; None without a recent NVIDIA driver.

    It blocks for as long as the driver hangs.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
        library.nvmlDeviceGetMemoryInfo_v2  # noqa: B018 - missing in older drivers
    except (OSError, AttributeError):
        return None
    devices: list[ctypes.c_void_p] = []

    def read() -> list[dict[str, float]]:
        devices.extend([] if devices else _devices(library))
        return [_read_device(library, device) for device in devices]

    return read


def _devices(library: ctypes.CDLL) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint()
    if library.nvmlInit_v2() != 0 or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    handles = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            handles.append(handle)
    return handles


def read_gpu_names() -> list[str]:
    """Return the names of this machine's GPUs; a hung driver does not return."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        devices = _devices(library)
    except (OSError, AttributeError):
        return []
    names = []
    for device in devices:
        name = ctypes.create_string_buffer(_MAX_NAME_BYTES)
        library.nvmlDeviceGetName(device, name, _MAX_NAME_BYTES)
        names.append(name.value.decode(errors="replace"))
    return names


def _read_device(library: ctypes.CDLL, device: ctypes.c_void_p) -> dict[str, float]:
    """Values that a device does not report stay 0."""
    utilization, memory = _Utilization(), _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
    library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization))
    library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory))
    return {
        "util_percent": float(utilization.gpu),
        "memory_used_mb": round(memory.used / _MB, 1),
        "memory_total_mb": round(memory.total / _MB, 1),
    }
