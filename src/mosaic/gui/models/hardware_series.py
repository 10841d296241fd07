"""What a run's processes use over time: the keeper's samples, the earlier ones read once, the rest as they come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from PySide6.QtCore import QObject, Signal

from mosaic.client import TrainerClient
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.series import GrowingPoints

Json = dict[str, Any]
CPU_TAG, MEMORY_TAG = "hardware/CPU %", "hardware/memory MB"


def points_of_sample(sample: Json) -> dict[str, float]:
    """A sample as points: one for each thing that is measured."""
    found = {CPU_TAG: float(sample["cpu_percent"]), MEMORY_TAG: float(sample["rss_mb"])}
    for number, gpu in enumerate(sample.get("gpus") or ()):
        found[f"hardware/GPU {number} %"] = float(gpu["util_percent"])
        found[f"hardware/GPU {number} memory MB"] = float(gpu["memory_used_mb"])
    return found


class HardwareSeries(QObject):
    """The samples of one run, by tag; a sample has a time and no step."""

    points_added = Signal(set)

    def __init__(self, run_id: str, bridge: Bridge, newest: Json | None, parent: QObject | None = None) -> None:
        """`newest` is the sample in the run's view: the earlier ones are read up to it."""
        super().__init__(parent)
        self.run_id = run_id
        self.tags: dict[str, GrowingPoints] = {}
        bridge.events_received.connect(self._on_events)
        if newest is not None:
            until = float(newest["at"])
            bridge.ask(
                lambda trainer: load_earlier_samples(trainer, run_id, until), self._on_earlier_loaded, None, self
            )

    def _on_events(self, events: list[Json]) -> None:
        self._append_samples(
            [event for event in events if event["kind"] == "sample" and event["run_id"] == self.run_id]
        )

    def _on_earlier_loaded(self, samples: list[Json]) -> None:
        newer, self.tags = self.tags, {}
        self._append_samples(samples)
        for tag, rows in newer.items():
            held = self.tags.setdefault(tag, GrowingPoints())
            fresh = rows.at > (held.at[-1] if len(held) else 0.0)
            held.extend(np.column_stack([rows.step, rows.at, rows.value])[fresh])

    def _append_samples(self, samples: Iterable[Json]) -> None:
        grown = set()
        for sample in samples:
            for tag, value in points_of_sample(sample).items():
                self.tags.setdefault(tag, GrowingPoints()).extend(np.array([[0.0, sample["at"], value]]))
                grown.add(tag)
        if grown:
            self.points_added.emit(grown)


def load_earlier_samples(trainer: TrainerClient, run_id: str, until: float) -> list[Json]:
    """All samples that the daemon has, up to the one of that time. A watch has no end of its own: this knows it."""
    found: list[Json] = []
    for batch in trainer.watch(0, run_id, ["sample"]):
        found += batch.events
        if batch.skipped or (found and found[-1]["at"] >= until):
            break
    return found
