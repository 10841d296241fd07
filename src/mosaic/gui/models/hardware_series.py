"""What a run's processes use over time: the keeper's samples, the earlier ones read once, the rest as they come."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from PySide6.QtCore import QObject, Signal

from mosaic.client import TrainerClient
from mosaic.contracts.events import Event, Sample
from mosaic.contracts.views import HardwareSample
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.series import GrowingPoints

CPU_TAG, MEMORY_TAG = "hardware/CPU %", "hardware/memory MB"


def points_of_sample(sample: Sample) -> dict[str, float]:
    """One point for each quantity that is measured."""
    points = {CPU_TAG: sample.cpu_percent, MEMORY_TAG: sample.rss_mb}
    for number, gpu in enumerate(sample.gpus):
        points[f"hardware/GPU {number} %"] = gpu["util_percent"]
        points[f"hardware/GPU {number} memory MB"] = gpu["memory_used_mb"]
    return points


class HardwareSeries(QObject):
    """The samples of one run, by tag; a sample has a time and no step."""

    points_added = Signal(set)

    def __init__(
        self, run_id: str, bridge: Bridge, newest: HardwareSample | None, parent: QObject | None = None
    ) -> None:
        """`newest` is the sample in the run's view: the earlier ones are read up to it."""
        super().__init__(parent)
        self.run_id = run_id
        self.tags: dict[str, GrowingPoints] = {}
        self._last_seq = 0
        self._pending: list[Sample] | None = None
        """Samples that came while the earlier ones were being read."""
        bridge.events_received.connect(self._on_events)
        if newest is not None:
            self._pending = []
            until = newest.at
            bridge.ask(
                lambda trainer: load_earlier_samples(trainer, run_id, until),
                self._on_earlier_loaded,
                lambda _: self._on_earlier_loaded([]),
                self,
            )

    def _on_events(self, events: list[Event]) -> None:
        samples = [event for event in events if isinstance(event, Sample) and event.run_id == self.run_id]
        if self._pending is not None:
            self._pending += samples
        else:
            self._append_samples(samples)

    def _on_earlier_loaded(self, samples: list[Sample]) -> None:
        newer, self._pending = self._pending or [], None
        self._append_samples(samples + newer)

    def _append_samples(self, samples: Iterable[Sample]) -> None:
        grown = set()
        for sample in samples:
            if sample.seq <= self._last_seq:
                continue  # it was among the earlier ones
            self._last_seq = sample.seq
            for tag, value in points_of_sample(sample).items():
                columns = np.zeros(1), np.array([sample.at]), np.array([value])
                self.tags.setdefault(tag, GrowingPoints()).extend(*columns)
                grown.add(tag)
        if grown:
            self.points_added.emit(grown)


def load_earlier_samples(trainer: TrainerClient, run_id: str, until: float) -> list[Sample]:
    """All samples that the daemon has up to that time. A watch never ends by itself, so this stops at the last one."""
    found: list[Sample] = []
    for batch in trainer.watch(0, run_id, ["sample"]):
        found += [event for event in batch.events if isinstance(event, Sample)]
        if batch.skipped or (found and found[-1].at >= until):
            break
    return found
