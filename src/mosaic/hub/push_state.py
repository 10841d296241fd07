"""`hub/push.json` of a run: whether and where its policy was sent."""

from __future__ import annotations

import json
import time
from typing import Any

from mosaic.contracts.files import write_json
from mosaic.contracts.folder import RunFolder

STATE_KEYS = ("state", "repo", "url", "commit", "step", "problem")


def write(folder: RunFolder, **facts: Any) -> None:
    """`state` is `pushed` or `failed`, with the `problem` in one sentence."""
    folder.hub.mkdir(exist_ok=True)
    write_json(folder.hub / "push.json", {"at": time.time(), **{key: facts[key] for key in STATE_KEYS if key in facts}})


def read(folder: RunFolder) -> dict[str, Any] | None:
    """None where it was never sent."""
    try:
        said = json.loads((folder.hub / "push.json").read_text())
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) and "state" in said else None
