"""Manages the checkpoints of one run: which exist, which is the best, which are deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.common.checkpoint_files import list_steps, read_manifest
from mosaic.contracts.folder import RunFolder
from mosaic.run import checkpoints
from mosaic.run.checkpoints import Array, CheckpointPart, MovedCheckpoint


class SavedCheckpoint(NamedTuple):
    path: Path
    is_best: bool


class CheckpointManager:
    def __init__(self, folder: RunFolder, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._best: tuple[int, float] | None = None
        self._entries: dict[int, dict[str, Any]] = {}
        self._interim: set[int] = set()

    @property
    def best_score(self) -> float | None:
        return None if self._best is None else self._best[1]

    def adopt_existing(self, above_step: int) -> list[MovedCheckpoint]:
        """Take over the checkpoints of an earlier attempt up to a step, and move those above it aside."""
        moved = list(checkpoints.move_aside(self._folder, above_step))
        self._rescan()
        scores = {step: entry["score"] for step, entry in self._entries.items() if entry["score"] is not None}
        best = max(scores, key=lambda step: (scores[step], -step), default=None)
        self._best = None if best is None else (best, scores[best])
        last = max(self._entries, default=None)
        # Nothing depends on the links: a full disk here is not a reason to stop.
        with contextlib.suppress(OSError):
            for link, step in ((self._folder.last_checkpoint, last), (self._folder.best_checkpoint, best)):
                if step is not None:
                    checkpoints.update_link(link, step)
                else:
                    link.unlink(missing_ok=True)
        return moved

    def save(
        self,
        step: int,
        weights: Mapping[str, Array],
        arrays: Mapping[str, Array | CheckpointPart],
        facts: Mapping[str, Any],
        extra_manifest: Mapping[str, Any],
        score: float | None,
        is_interim: bool = False,
    ) -> SavedCheckpoint:
        """Write a checkpoint; it is the best if its score is higher than any before.

        Interim ones before it are deleted, unless one is the best.
        """
        best = self._best
        is_best = score is not None and (best is None or score > best[1] or step == best[0])
        if score is not None and is_best:
            best = (step, score)
        path = checkpoints.write(self._folder, step, weights, arrays, facts, {**extra_manifest, "score": score})
        checkpoints.update_link(self._folder.last_checkpoint, step)
        if is_best:
            checkpoints.update_link(self._folder.best_checkpoint, step)
        interim = self._interim - {step} | ({step} if is_interim else set())
        checkpoints.prune(self._folder, self._keep, best[0] if best else None, interim)
        self._best = best
        self._rescan()
        return SavedCheckpoint(path, is_best)

    def summary(self) -> dict[str, Any]:
        """Return the checkpoints' entries of analytics.json."""
        return {
            "checkpoints": list(self._entries.values()),
            "best": self._entries.get(self._best[0]) if self._best else None,
            "last": self._entries[max(self._entries)] if self._entries else None,
        }

    def _rescan(self) -> None:
        manifests = {step: read_manifest(self._folder.checkpoint(step)) for step in list_steps(self._folder)}
        self._interim = {step for step, manifest in manifests.items() if manifest and manifest.get("is_interim")}
        self._entries = {
            step: {
                "step": step,
                "path": str(self._folder.checkpoint(step).relative_to(self._folder.path)),
                "at": manifest["saved_at"],
                "score": manifest["score"],
            }
            for step, manifest in manifests.items()
            if manifest is not None
        }
