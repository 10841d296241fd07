"""Formats the W&B state of a run. No widgets here."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mosaic.client import TrainerClient
from mosaic.contracts.payload import WandbArtifacts
from mosaic.contracts.views import WandbStatus
from mosaic.formatting import format_size, format_timestamp
from mosaic.sidecar.wandb_environment import Proxies, resolve_proxies

WANDB_STATE_ICONS = {
    "offline": ("mdi6.cloud-off-outline", "muted"),
    "syncing": ("mdi6.cloud-upload-outline", "accent"),
    "synced": ("mdi6.cloud-check-outline", "good"),
    "online": ("mdi6.cloud-check-outline", "good"),
    "failed": ("mdi6.cloud-alert-outline", "bad"),
}
STATE_DESCRIPTIONS = {
    "offline": "Everything is stored on this machine. Nothing is lost while W&B cannot be reached; Sync uploads it.",
    "syncing": "The run is being uploaded.",
    "synced": "The complete run is on W&B's server.",
    "online": "The script itself uploads to W&B.",
    "failed": "The upload failed. Everything is stored on this machine and can be synced again.",
}


class WandbRunStatus(NamedTuple):
    state: WandbStatus | None
    proxies: Proxies
    """Used for its web page."""


def fetch_status(trainer: TrainerClient, run_id: str, root: Path) -> WandbRunStatus:
    """Queries the daemon, the run's config and the user's settings; slow."""
    wandb = WandbArtifacts.model_validate(trainer.config(run_id).get("artifacts", {}).get("wandb") or {})
    return WandbRunStatus(next(iter(trainer.read_wandb(run_id)), None), resolve_proxies(wandb, root))


def can_sync(state: WandbStatus | None) -> bool:
    return state is not None and state.state in ("offline", "failed")


def format_headline(state: WandbStatus | None) -> str:
    """`offline · 120 records · 3.4 MB`."""
    if state is None:
        return "nothing yet"
    words = [str(state.state)]
    records = _total_records(state)
    if records is not None:
        words.append(f"{records:,} records")
    words.append(format_size(sum(entry.size_bytes for entry in state.runs.values())))
    return " · ".join(words)


def upload_progress(state: WandbStatus) -> tuple[int, int]:
    """Returns bytes uploaded and total bytes. 0 uploaded: the progress is unknown."""
    entries = state.runs.values()
    return sum(entry.sent_bytes for entry in entries), sum(entry.size_bytes for entry in entries)


def detail_rows(state: WandbStatus) -> list[tuple[str, str, str]]:
    """Returns name, value and tooltip of everything that is known."""
    records = _total_records(state)
    entries = state.runs
    newest = max((entry.updated_at or 0.0 for entry in entries.values()), default=0.0)
    rows = [
        ("Project", state.project or "", ""),
        ("Entity", state.entity or "", ""),
        ("Address", state.url or "", ""),
        ("Records", "" if records is None else f"{records:,}", "Rows of scalars"),
        ("Changed", format_timestamp(newest) if newest else "", ""),
    ]
    for name, entry in entries.items():
        rows.append(("Folder", f"{name} ({entry.state}, {format_size(entry.size_bytes)})", entry.error or ""))
    return [row for row in rows if row[1]]


def _total_records(state: WandbStatus) -> int | None:
    known = [entry.records for entry in state.runs.values() if entry.records is not None]
    return sum(known) if known else None
