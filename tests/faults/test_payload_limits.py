"""F27: huge, deep and malformed payloads are refused by key or limit, and nothing is left behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import MOSAIC, PATIENCE_S, mosaic
from tests.helpers.daemons import LiveDaemon, ended, scripted

from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, StorageFailed
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

CONFIG = "metadata.worker.config"


def with_config(text: str) -> str:
    return '{"metadata": {"worker": {"id": "scripted", "config": {%s}}}, "artifacts": {}}' % text  # noqa: UP031


def with_ui(text: str) -> str:
    worker = '{"id": "scripted", "config": {}}'
    return f'{{"metadata": {{"worker": {worker}, "ui": {text}}}, "artifacts": {{}}}}'


PAYLOADS = {
    "total_timesteps beyond 64 bits": (with_config(f'"total_timesteps": {2**70}'), f"{CONFIG}.total_timesteps"),
    "a number of 5,000 digits": (with_config('"steps": ' + "9" * 5000), f"{CONFIG}.steps"),
    "seed that is not a number": (with_config('"seed": NaN'), f"{CONFIG}.seed"),
    "total_timesteps that is infinite": (with_config('"total_timesteps": Infinity'), f"{CONFIG}.total_timesteps"),
    "a float that overflows": (with_config('"dt": 1e309'), f"{CONFIG}.dt"),
    "a NUL character": (with_ui(json.dumps({"a": "x\0y"})), "metadata.ui.a"),
    "a lone surrogate": (with_ui('{"a": "\\ud800"}'), "metadata.ui.a"),
    "a key that is a lone surrogate": (with_ui('{"\\ud800": 1}'), "metadata.ui.?"),
    "60 MB of text": (with_ui(json.dumps({"a": "x" * (60 << 20)})), "1,000,000"),
    "many keys": (with_ui(json.dumps({f"k{number}": 1 for number in range(50_000)})), "10,000 keys"),
    "many tags": (json.dumps({"metadata": {"tags": ["t"] * 100_000}, "artifacts": {}}), "10,000 keys"),
    "many unknown keys": (json.dumps({f"k{number}": 1 for number in range(9_000)}), "and 8,9"),
    "a very long key": (json.dumps({"k" * 500_000: 1}), "unknown key"),
    "200 levels": (with_ui('{"a": ' + "[" * 200 + "]" * 200 + "}"), "32 levels"),
    "10,000 levels": (with_ui("[" * 10_000 + "]" * 10_000), "32 levels"),
    "100,000 levels": ("[" * 100_000 + "]" * 100_000, "32 levels"),
    "a key that occurs twice": (with_config('"steps": 1, "steps": 2'), "'steps' occurs twice"),
    "no JSON": ("{", "not valid JSON"),
}


def test_a_payload_beyond_the_limits_is_refused_and_leaves_nothing(
    trainer: TrainerClient, workspace: Workspace, record_property: Callable[[str, object], None]
) -> None:
    for name, (text, expected) in PAYLOADS.items():
        for verb in ("SubmitRun", "CheckRun"):
            with pytest.raises(BadInput) as refusal:
                trainer.call(verb, pb.PayloadRequest(payload_json=text))
            assert expected in str(refusal.value), name
            assert len(str(refusal.value)) < 6000, name
        assert list(trainer.runs()) == [], name
        assert not workspace.runs.exists() or list(workspace.runs.iterdir()) == [], name
    record_property("tries", len(PAYLOADS))


SHAPES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"{}", "The config was refused: metadata: missing; artifacts: missing."),
    "no metadata": (b'{"artifacts": {}}', "The config was refused: metadata: missing."),
    "metadata that is text": (
        b'{"metadata": "x", "artifacts": {}}',
        "The config was refused: metadata: expected",
    ),
    "no worker": (b'{"metadata": {}, "artifacts": {}}', "The config was refused: metadata.worker: missing."),
    "a worker without a config": (
        b'{"metadata": {"worker": {"id": "scripted"}}, "artifacts": {}}',
        "The config was refused: metadata.worker.config: missing.",
    ),
    "a config that is a list": (
        b'{"metadata": {"worker": {"id": "scripted", "config": []}}, "artifacts": {}}',
        "The config was refused: metadata.worker.config: expected a mapping",
    ),
    "modules that are no names": (
        b'{"metadata": {"worker": {"id": "scripted", "config": {}, "imports": {"modules": [[]]}}}, "artifacts": {}}',
        "The config was refused: metadata.worker.imports.modules.0: expected text.",
    ),
    "a list": (b"[]", "holds list; expected a JSON object"),
    "no JSON": (b"{", "is not valid JSON"),
    "200,000 levels": (b"[" * 200_000, "is nested too deeply"),
    "no text": (b"\xff\xfe\x00", "is not a text file"),
}


def test_a_file_of_any_shape_is_refused_in_a_sentence(
    live: tuple[LiveDaemon, TrainerClient], workspace: Workspace, record_property: Callable[[str, object], None]
) -> None:
    """R2.1: by `mosaic submit` and `mosaic check`, which read it, as by the daemon."""
    for name, (content, expected) in SHAPES.items():
        file = workspace.root / "payload.json"
        file.write_bytes(content)
        for verb in ("submit", "check"):
            result = mosaic(workspace, verb, str(file), "--json")
            assert result.code == BadInput.exit_code, (name, result.err)
            assert expected in result.json["error"], name
            assert "Traceback" not in result.err, name
    assert "Is a directory" in mosaic(workspace, "submit", str(workspace.root), "--json").json["error"]
    assert not workspace.runs.exists() or list(workspace.runs.iterdir()) == []
    record_property("tries", len(SHAPES))


@pytest.mark.may_log("files_unusable")
def test_a_submission_that_cannot_be_stored_leaves_nothing(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace
) -> None:
    """A run is acknowledged when its folder and its row in the index are there, or not at all."""
    good = ended(trainer, trainer.submit(scripted(steps=1)).run_id)
    runs: list[Any] = list(workspace.runs.iterdir())
    workspace.configs.rename(workspace.configs.with_name("aside"))
    workspace.configs.write_text("in the way")
    with pytest.raises(StorageFailed, match="File exists"):
        trainer.submit(scripted(steps=1))
    workspace.configs.unlink()
    workspace.configs.with_name("aside").rename(workspace.configs)
    trainer.close()
    daemon.stop()
    trainer = daemon.start()
    assert [view.run_id for view in trainer.runs()] == [good.run_id]
    assert list(workspace.runs.iterdir()) == runs
    trainer.close()


@pytest.mark.parametrize("command", ["submit /dev/zero", "submit -", "experiment check endless.yaml"])
def test_a_file_without_an_end_is_refused(tmp_path: Path, command: str) -> None:
    """F27: before the memory of the machine is full."""
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    words = ["sh", "-c", 'ulimit -v 8000000; exec "$0" "$@" < /dev/zero', MOSAIC, *command.split()]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert "has more than 1,000,000 bytes" in result.stderr
