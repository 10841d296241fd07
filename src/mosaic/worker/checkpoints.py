"""Checkpoints: written under a temporary name and renamed, hashed, and read without unpickling anything.

`checkpoints/<step>/` holds `weights.safetensors`, `state.npz` and `manifest.json`; `last` and `best` are relative
links. Data too large to be rewritten each time is in parts: files that never change and that checkpoints share by hard
links; only resuming needs them. A name that starts with a dot and ends in `.tmp` is incomplete; `<step>.damaged` and
`<step>.superseded` were moved aside by a later attempt and are never loaded.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mosaic import __version__
from mosaic.base.checkpoint_files import (
    FORMAT,
    MANIFEST,
    STATE,
    WEIGHTS,
    DamagedError,
    describe_file,
    hard_link,
    is_intact,
    list_steps,
    paths_newest_first,
    read_manifest,
    seal_manifest,
    verify_files,
)
from mosaic.base.files import fsync_path
from mosaic.contracts.errors import CheckpointDamaged
from mosaic.contracts.folder import PENDING_PARTS_DIR, RunFolder
from mosaic.worker.torch_files import expands

Array = npt.NDArray[Any]


class CheckpointPart(NamedTuple):
    """A file that checkpoints share; it never changes once written."""

    path: Path
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    step: int
    """Environment steps taken when it was written."""
    weights: dict[str, Array]
    arrays: dict[str, Array]
    facts: dict[str, Any]
    """JSON values that the algorithm saved with its arrays."""
    manifest: dict[str, Any]
    parts: dict[str, CheckpointPart] = field(default_factory=dict)


class _Entries(dict[str, Any]):
    """Arrays or facts of a checkpoint. One that is missing, such as a normalizer, is damage and named."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise CheckpointDamaged(
            f"Checkpoint {self._path} has no {key!r}, which the algorithm needs. "
            "Use another checkpoint, or start the run again."
        )


# --- reading


def load_checkpoint(path: str | os.PathLike[str], *, with_parts: bool = True) -> Checkpoint:
    """Load the checkpoint in a folder or link, or raise CheckpointDamaged. Only resuming needs its parts."""
    given = Path(path)
    target = given.resolve() if given.is_symlink() else given.absolute()
    try:
        return _load(target, with_parts)
    except DamagedError as damage:
        others = (other for other in paths_newest_first(target.parent) if other != target and is_intact(other))
        other = next(others, None)
        advice = f"Use {other} instead." if other else "There is no other intact checkpoint: start the run again."
        raise CheckpointDamaged(f"Checkpoint {target} is damaged ({damage}). {advice}") from None


def last_good_checkpoint(folder: RunFolder, *, with_parts: bool = True) -> Checkpoint | None:
    """Load the newest intact checkpoint; return None if there is none. Only resuming needs its parts.

    If no checkpoint has all of its parts (they are not pushed to the Hub, for example), load the newest without them.
    """
    for has_parts in (True, False) if with_parts else (False,):
        for path in paths_newest_first(folder.checkpoints):
            with suppress(DamagedError):
                return _load(path, has_parts)
    return None


def _load(path: Path, with_parts: bool) -> Checkpoint:
    manifest = verify_files(path, with_parts)
    from safetensors.numpy import load

    try:
        weights: dict[str, Array] = load((path / WEIGHTS).read_bytes())
        # Opened here: numpy does not close a file whose content it refuses.
        with open(path / STATE, "rb") as file, np.load(file, allow_pickle=False) as archive:
            if expands(archive.zip):
                raise DamagedError(f"{STATE} is compressed, which no checkpoint is")
            arrays = _Entries(path, archive)
    except Exception as error:  # the decoders of foreign bytes raise all kinds of errors
        raise DamagedError(str(error)) from None
    parts = {
        name: CheckpointPart(path / name, entry["size_bytes"], entry["sha256"])
        for name, entry in manifest["files"].items()
        if with_parts and name not in (WEIGHTS, STATE)
    }
    return Checkpoint(path, manifest["step"], weights, arrays, _Entries(path, manifest["facts"]), manifest, parts)


# --- writing


def write(
    folder: RunFolder,
    step: int,
    weights: Mapping[str, Array],
    arrays: Mapping[str, Array | CheckpointPart],
    facts: Mapping[str, Any],
    extra_manifest: Mapping[str, Any],
) -> Path:
    """Write a checkpoint, replacing one of the same step; `extra_manifest` is added to the manifest."""
    parts = {name: array for name, array in arrays.items() if isinstance(array, CheckpointPart)}
    from safetensors.numpy import save

    draft = folder.checkpoints / f".{step}.tmp"
    _remove(draft)
    try:
        draft.mkdir(parents=True)
        (draft / WEIGHTS).write_bytes(save({name: np.asarray(array, order="C") for name, array in weights.items()}))
        _write_arrays(
            draft / STATE, {key: array for key, array in arrays.items() if not isinstance(array, CheckpointPart)}
        )
        files = {name: {"size_bytes": part.size_bytes, "sha256": part.sha256} for name, part in parts.items()}
        for name, part in parts.items():
            hard_link(part.path, draft / name)
        for name in (WEIGHTS, STATE):
            files[name] = describe_file(draft / name)
        body: dict[str, Any] = {
            "format": FORMAT,
            "step": step,
            "saved_at": time.time(),
            "run_id": folder.run_id,
            **extra_manifest,
            "files": files,
            "versions": versions(),
            "facts": dict(facts),
        }
        (draft / MANIFEST).write_text(seal_manifest(body), encoding="utf-8")
        for path in (*(draft / name for name in files), draft / MANIFEST, draft):
            fsync_path(path)
    except BaseException:
        _remove(draft)  # free the space on a disk that may be full
        raise
    target = folder.checkpoint(step)
    replaced = folder.checkpoints / f".{step}.old.tmp"
    _remove(replaced)
    if target.exists():
        os.rename(target, replaced)
    os.rename(draft, target)
    fsync_path(folder.checkpoints)
    _remove(replaced)
    return target


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def update_link(link: Path, step: int) -> None:
    """Point `last` or `best` at a step atomically."""
    draft = link.with_name(f".{link.name}.tmp")
    _remove(draft)
    os.symlink(str(step), draft)
    if link.is_dir() and not link.is_symlink():  # a copy that followed the links
        _remove(link)
    os.replace(draft, link)


def prune(folder: RunFolder, keep: int, best: int | None, interim: Collection[int] = ()) -> None:
    """Delete all but the newest `keep` and the best. Interim ones do not count; of these, the newest of all stays."""
    steps = list_steps(folder)
    lasting = [step for step in steps if step not in interim]
    for step in steps[:-1]:
        if step != best and step not in lasting[-max(1, keep) :]:
            draft = folder.checkpoints / f".{step}.gone.tmp"
            _remove(draft)
            os.rename(folder.checkpoint(step), draft)
            _remove(draft)


def recover_interrupted_writes(folder: RunFolder) -> None:
    """Remove what a killed process left incomplete, and restore what it was about to replace."""
    for path in folder.checkpoints.glob(".*.tmp"):
        step = path.name.removeprefix(".").removesuffix(".old.tmp")
        if step.isdecimal() and path.name.endswith(".old.tmp") and not folder.checkpoint(int(step)).exists():
            os.rename(path, folder.checkpoint(int(step)))
        else:
            _remove(path)


def remove_pending_parts(folder: RunFolder) -> None:
    """Remove parts that belong to no checkpoint; a checkpoint's parts are linked into its own folder."""
    shutil.rmtree(folder.checkpoints / PENDING_PARTS_DIR, ignore_errors=True)


class MovedCheckpoint(NamedTuple):
    step: int
    path: Path
    """Its new path."""
    damage: str | None


def move_aside(folder: RunFolder, above: int) -> Iterator[MovedCheckpoint]:
    """Rename the checkpoints above a step, intact or not: a new attempt will write there."""
    for step in list_steps(folder):
        if step <= above:
            continue
        damage = None
        try:
            verify_files(folder.checkpoint(step))
        except DamagedError as error:
            damage = str(error)
        name = f"{step}.{'damaged' if damage else 'superseded'}"
        target = folder.checkpoints / name
        number = 1
        while target.exists():
            number += 1
            target = folder.checkpoints / f"{name}-{number}"
        os.rename(folder.checkpoint(step), target)
        yield MovedCheckpoint(step, target, damage)


def versions() -> dict[str, str]:
    installed = {"python": platform.python_version(), "numpy": np.__version__, "mosaic": __version__}
    for name in ("gymnasium", "torch"):
        if name in sys.modules:
            installed[name] = str(sys.modules[name].__version__)
    return installed


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- the checkpoints of one run: which exist, which is the best, which are deleted


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
        moved = list(move_aside(self._folder, above_step))
        self._rescan()
        scores = {step: entry["score"] for step, entry in self._entries.items() if entry["score"] is not None}
        best = max(scores, key=lambda step: (scores[step], -step), default=None)
        self._best = None if best is None else (best, scores[best])
        last = max(self._entries, default=None)
        # Nothing depends on the links: a full disk here is not a reason to stop.
        with suppress(OSError):
            for link, step in ((self._folder.last_checkpoint, last), (self._folder.best_checkpoint, best)):
                if step is not None:
                    update_link(link, step)
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
        path = write(self._folder, step, weights, arrays, facts, {**extra_manifest, "score": score})
        update_link(self._folder.last_checkpoint, step)
        if is_best:
            update_link(self._folder.best_checkpoint, step)
        interim = self._interim - {step} | ({step} if is_interim else set())
        prune(self._folder, self._keep, best[0] if best else None, interim)
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
