"""`hub/push.json` of a run: whether and where its policy was pushed."""

from __future__ import annotations

import json
import time
from typing import Any

from mosaic.common.files import write_json
from mosaic.contracts.folder import RunFolder

STATE_KEYS = ("state", "repo", "url", "commit", "step", "problem")


def write(folder: RunFolder, **fields: Any) -> None:
    """Writes `state` (`pushed` or `failed`) with where it was pushed, or with the `problem` in one sentence."""
    folder.hub.mkdir(exist_ok=True)
    write_json(
        folder.hub / "push.json", {"at": time.time(), **{key: fields[key] for key in STATE_KEYS if key in fields}}
    )


def read(folder: RunFolder) -> dict[str, Any] | None:
    """Returns None where it was never pushed."""
    try:
        state = json.loads((folder.hub / "push.json").read_text())
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and "state" in state else None
