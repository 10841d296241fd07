"""What of a run goes to the Hub: one checkpoint, its settings, how it was evaluated, a video, and a card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import BadInput, CheckpointDamaged
from mosaic.contracts.folder import RunFolder
from mosaic.hub import card
from mosaic.hub.description import (
    CARD_FILE,
    CHECKPOINT_FILES,
    CONFIG_FILE,
    DESCRIPTION_FILE,
    EVALUATION_FILE,
    MODEL_SUFFIX,
    VIDEO_FILE,
    HashedFile,
    PolicyDescription,
    hash_content,
)

Json = dict[str, Any]
_LOCAL_KEYS = ("policy_path", "videos")
"""Entries of an evaluation that name files of this machine."""


@dataclass(frozen=True)
class HubBundle:
    description: PolicyDescription
    files: dict[str, Path | bytes]
    """By path in the repository."""
    omissions: tuple[str, ...]
    """A sentence for each thing that one might miss."""

    @property
    def size_bytes(self) -> int:
        return sum(content_size_bytes(content) for content in self.files.values())


def content_size_bytes(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def build_bundle(
    folder: RunFolder,
    checkpoint: Path,
    repo: str,
    evaluation: RunFolder | None = None,
    has_video: bool = True,
    model: Path | None = None,
) -> HubBundle:
    """Everything is checked before anything is sent: a damaged checkpoint is refused.

    `model` is the same policy as CleanRL saves it; where none is given, the run's own goes along if it is of this step.
    """
    manifest = _load_manifest(checkpoint)
    settings = dict(manifest["facts"].get("config") or {})
    files: dict[str, Path | bytes] = {
        f"checkpoints/{manifest['step']}/{name}": checkpoint / name for name in CHECKPOINT_FILES
    }
    left_out = []
    model = model or find_model_file(folder, checkpoint)
    if model is not None:
        files[model.name] = model
    else:
        left_out.append(f"No {MODEL_SUFFIX} goes along: there is none of step {manifest['step']}.")
    played = _load_evaluation(evaluation or folder, int(manifest["step"]))
    if played is not None:
        files[EVALUATION_FILE] = _json_bytes(played)
    else:
        left_out.append("The card has no evaluation of this checkpoint. Make one first: mosaic eval RUN")
    video = _find_video(evaluation, folder) if has_video else None
    if video is not None:
        files[VIDEO_FILE] = video
    try:
        bare = PolicyDescription(
            worker=manifest.get("worker") or "cleanrl",
            algo=manifest["facts"]["algorithm"],
            env_id=settings["env_id"],
            seed=settings.get("seed"),
            total_timesteps=settings.get("total_timesteps"),
            step=manifest["step"],
            score=manifest.get("score"),
            run_id=folder.run_id,
            settings=settings,
            versions=manifest.get("versions") or {},
            model=None if model is None else model.name,
            files={},
        )
    except (KeyError, ValueError) as error:
        raise BadInput(
            f"The checkpoint {checkpoint} does not say what it is of ({error}); it cannot be pushed."
        ) from None
    files[CONFIG_FILE] = _json_bytes(bare.to_payload())
    description = bare.model_copy(update={"files": {name: hash_content(content) for name, content in files.items()}})
    files[DESCRIPTION_FILE] = _json_bytes(description.model_dump(mode="json"))
    files[CARD_FILE] = card.model_card(description, played, repo, has_video=video is not None).encode()
    return HubBundle(description, files, tuple(left_out))


def _load_manifest(checkpoint: Path) -> Json:
    try:
        manifest: Json = json.loads((checkpoint / "manifest.json").read_text())
        for name, said in manifest["files"].items():
            if hash_content(checkpoint / name) != HashedFile(**said):
                raise CheckpointDamaged(
                    f"Checkpoint {checkpoint} is damaged ({name}: hash mismatch). Push another one."
                )
        if not isinstance(manifest["facts"], dict) or not isinstance(manifest["step"], int):
            raise ValueError("no facts")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"Checkpoint {checkpoint} cannot be read ({error}). Push another one.") from None
    return manifest


def find_model_file(folder: RunFolder, checkpoint: Path) -> Path | None:
    """It is written at the end, from the last checkpoint: it fits no other one."""
    found = sorted(folder.models.glob(f"*/*{MODEL_SUFFIX}"), key=lambda path: path.stat().st_mtime)
    is_last = folder.last_checkpoint.exists() and folder.last_checkpoint.resolve() == checkpoint.resolve()
    return found[-1] if found and is_last else None


def _load_evaluation(folder: RunFolder, step: int) -> Json | None:
    """Without what names files of this machine."""
    summary = read_eval_summary(folder)
    if summary is None or summary.get("checkpoint_step") not in (None, step):
        return None
    return {key: value for key, value in summary.items() if key not in _LOCAL_KEYS}


def read_eval_summary(folder: RunFolder) -> Json | None:
    """What an evaluation found; none where there is none, or not one whole episode."""
    try:
        summary = json.loads(folder.eval_summary.read_text())
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and isinstance(summary.get("avg_return"), (int, float)) else None


def _find_video(evaluation: RunFolder | None, folder: RunFolder) -> Path | None:
    """The first episode of the evaluation, else the newest of the run itself."""
    if evaluation is not None:
        films = sorted(evaluation.videos.rglob("*.mp4"))
        if films:
            return films[0]
    films = sorted(folder.videos.rglob("*.mp4"), key=lambda path: path.stat().st_mtime)
    return films[-1] if films else None


def _json_bytes(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()
