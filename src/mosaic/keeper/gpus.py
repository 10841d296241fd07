"""Samples GPU usage through NVIDIA's management library, loaded with ctypes.

A hung driver does not return, so a separate thread queries it; the keeper's loop uses the newest sample.
"""

from __future__ import annotations

import ctypes
import threading
import time

_LIBRARY = "libnvidia-ml.so.1"
PERIOD_S = 2.0
_MB = 2**20
_MAX_NAME_BYTES = 96


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
        reader = open_reader()
        if reader is not None:
            threading.Thread(target=self._follow, args=(reader,), name="gpus", daemon=True).start()

    def _follow(self, reader: GpuReader) -> None:
        while sample := reader.read():
            self.newest = sample
            time.sleep(PERIOD_S)


class GpuReader:
    """Reads all GPUs of the machine, by NVIDIA's index. A read blocks for as long as the driver hangs."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._devices: list[ctypes.c_void_p] | None = None

    def read(self) -> list[dict[str, float]]:
        if self._devices is None:
            self._devices = _devices(self._library)
        return [_read_device(self._library, device) for device in self._devices]


def open_reader() -> GpuReader | None:
    """Return None without a recent NVIDIA driver."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        library.nvmlDeviceGetMemoryInfo_v2  # noqa: B018 - missing in older drivers
    except (OSError, AttributeError):
        return None
    return GpuReader(library)


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
