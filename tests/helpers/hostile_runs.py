"""A workspace whose runs were changed by somebody else: every text of theirs carries what its reader must not obey."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.names import RETURN_TAG
from mosaic.trainer.client.connect import connect

RECORD_TEXTS = ("reason", "problem", "run_name", "algo", "env_id", "worker_id", "agent_id", "submitted_by", "notes")
"""Of `record.json`, besides those in lists and the group."""


def poison(folder: RunFolder, text: str) -> None:
    """Write a text into everything of a finished run that is text and no identifier."""
    _change_json(folder.record, lambda record: _poison_record(record, text))
    _change_json(folder.config, lambda config: _poison_config(config, text))
    _change_lines(folder.journal, lambda event: _poison_event(event, text))
    _change_lines(folder.keeper, lambda event: _poison_event(event, text))
    for log in folder.logs.iterdir():
        log.write_text(f"{text}\n{log.read_text()}")
    (folder.path / "hub").mkdir(exist_ok=True)
    push = {"state": "failed", "repo": f"me/{text}", "problem": text, "step": 1, "url": text, "at": 1.0}
    (folder.path / "hub" / "push.json").write_text(json.dumps(push))
    folder.videos.mkdir(exist_ok=True)
    (folder.videos / f"{text.replace('/', '_')[:100]}.mp4").write_bytes(b"")


def poison_workspace(workspace: Workspace, text: str) -> None:
    """Poison all runs of a workspace whose daemon has ended; the next one rebuilds its index."""
    for path in workspace.runs.iterdir():
        poison(RunFolder(path), text)
    for file in workspace.trainer.glob("index.sqlite*"):
        file.unlink()


def finished_runs(workspace: Workspace, *payloads: dict[str, Any]) -> list[str]:
    """Run these, and end the daemon."""
    from tests.helpers.daemons import ended

    with connect(workspace) as trainer:
        views = [ended(trainer, trainer.submit(payload).run_id) for payload in payloads]
        trainer.stop_daemon()
    assert [view.outcome for view in views] == ["succeeded"] * len(views), [view.reason for view in views]
    return [view.run_id for view in views]


def _poison_record(record: dict[str, Any], text: str) -> None:
    record |= {name: f"{record[name] or ''}{text}" for name in RECORD_TEXTS}
    record |= {"group": text, "tags": [text], "warnings": [text], "worker_version": text, "capabilities": [text]}
    for entry in record["history"]:
        entry["message"] += text
    for attempt in record["attempts"]:
        attempt |= {"node": text, "job": text}
    record["executor"] = "ray"


def _poison_config(config: dict[str, Any], text: str) -> None:
    settings = config["metadata"]["worker"]["config"]
    settings |= {"env_id": f"{settings.get('env_id', '')}{text}", "env_kwargs": {text: text}}


def _poison_event(event: dict[str, Any], text: str) -> None:
    for name in ("version", "host", "system", "cpu", "text", "last_words", "reason"):
        if isinstance(event.get(name), str):
            event[name] += text
    if "series" in event:
        event["series"] |= {f"{tag}{text}": rows for tag, rows in event["series"].items() if tag != RETURN_TAG}
        event["series"] |= {f"a/{text}": [[1, event["at"], 1.0], [2, event["at"], 2.0]]}


def _change_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def _change_lines(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for event in events:
        change(event)
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events), encoding="utf-8")


def copy_with_name(folder: Path, name: str) -> Path:
    """Copy a folder beside itself."""
    copied = folder.with_name(name)
    shutil.copytree(folder, copied, symlinks=True)
    return copied
