"""F41: of records and configs that another version wrote, or nobody could have, what is understood is shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import end_daemon
from tests.helpers.commands import mosaic
from tests.helpers.hostile_runs import finished_runs
from tests.helpers.worker_runs import small

from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient

TRAINING = {"metadata": {"worker": {"id": "cleanrl", "config": small()}}, "artifacts": {}}
RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "times": ({"submitted_at": 1e300, "finished_at": -5.0}, "submitted_at: input should be less than"),
    "numbers": ({"priority": 10**30, "cpus": -5, "gpus": 1e308, "gpu": 10**9}, "priority: input should be less than"),
    "outcome": ({"outcome": "hibernated"}, "given: 'hibernated'"),
    "stage": ({"stage": "dreaming"}, "given: 'dreaming'"),
    "key": ({"mood": "good"}, "mood: unknown key"),
    "history": ({"history": [{"at": 1e300, "stage": "finished", "message": "x"}]}, "history.0.at"),
}


def change(path: Path, **changes: Any) -> bytes:
    """Change a JSON file; return what it holds now."""
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")
    return path.read_bytes()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workspace, list[str]]]:
    """A workspace with a run for each case and one more, whose daemon has ended, without an index."""
    place = Workspace(tmp_path_factory.mktemp("unknown") / "var")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(place.root.with_name("config")))
        yield place, finished_runs(place, *[TRAINING] * (len(RECORDS) + 2))
        end_daemon(place)


@pytest.fixture(scope="module")
def changed(prepared: tuple[Workspace, list[str]]) -> Iterator[tuple[TrainerClient, dict[str, bytes], list[str]]]:
    place, run_ids = prepared
    contents = {}
    for run_id, (changes, _) in zip(run_ids, RECORDS.values(), strict=False):
        contents[run_id] = change(place.run(run_id).record, **changes)
    config = json.loads(place.run(run_ids[-2]).config.read_text())
    change(place.run(run_ids[-2]).config, artifacts={**config["artifacts"], "hologram": {"enabled": True}})
    for file in place.trainer.glob("index.sqlite*"):
        file.unlink()
    with connect(place) as trainer:
        trainer.ask_worker("cleanrl", {"ask": "environments"})  # a test would take its process for one of its own
        yield trainer, contents, run_ids


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_with_unknown_values_is_shown_without_them(
    prepared: tuple[Workspace, list[str]], changed: tuple[TrainerClient, dict[str, bytes], list[str]], case: str
) -> None:
    """F41: its problem is stated, its file is kept, and all other runs are as they were."""
    place, _ = prepared
    trainer, contents, run_ids = changed
    run_id = run_ids[list(RECORDS).index(case)]
    views = {view.run_id: view for view in trainer.runs()}
    assert list(views) == run_ids[::-1]
    view = views[run_id]
    assert RECORDS[case][1] in (view.problem or "")
    assert "A newer version wrote it, or it is damaged." in (view.problem or "")
    assert (view.stage, view.status) == ("finished", "lost" if case == "outcome" else "succeeded")
    assert (view.algo, view.env_id, view.global_step) == ("ppo", "CartPole-v1", 64)
    assert place.run(run_id).record.read_bytes() == contents[run_id]
    assert views[run_ids[-1]].problem is None
    shown = mosaic(place, "show", run_id)
    assert (shown.code, "A newer version wrote it" in " ".join(shown.out.split())) == (0, True), shown


def test_what_is_kept_of_a_record_is_not_overwritten(
    prepared: tuple[Workspace, list[str]], changed: tuple[TrainerClient, dict[str, bytes], list[str]]
) -> None:
    """F41: a note writes a record of this version; what was there is beside it."""
    place, _ = prepared
    trainer, contents, run_ids = changed
    run_id = run_ids[list(RECORDS).index("key")]
    trainer.annotate_run(run_id, notes="seen")
    (aside,) = place.run(run_id).path.glob("record.json.damaged-*")
    assert aside.read_bytes() == contents[run_id]
    assert json.loads(place.run(run_id).record.read_text())["notes"] == "seen"
    aside.rename(place.run(run_id).record)  # as it was, for the other tests
    trainer.annotate_run(run_ids[-1], notes="seen")
    assert not list(place.run(run_ids[-1]).path.glob("record.json.damaged-*"))


def test_a_config_of_a_newer_version_is_named_by_every_command(
    prepared: tuple[Workspace, list[str]], changed: tuple[TrainerClient, dict[str, bytes], list[str]]
) -> None:
    """F41: and the rest of the run is shown."""
    place, _ = prepared
    trainer, _, run_ids = changed
    run_id = run_ids[-2]
    sentence = (
        "was written by a newer version of MOSAIC, or is damaged: LOG705 The config was refused: artifacts.hologram"
    )
    shown = mosaic(place, "show", run_id)
    assert (shown.code, sentence in " ".join(shown.out.split()), "History" in shown.out) == (0, True, True), shown
    for arguments in (["config"], ["resubmit"], ["eval"], ["resume", "--total-timesteps", "1000"]):
        refused = mosaic(place, arguments[0], run_id, *arguments[1:])
        assert (refused.code, sentence in refused.err) == (2, True), refused
    calls: list[Callable[[], object]] = [lambda: trainer.payload(run_id), lambda: trainer.config(run_id)]
    for call in calls:
        with pytest.raises(NotAllowed, match="newer version"):
            call()
    assert sentence in (trainer.read_settings(run_id).problem or "")
    assert trainer.read_settings(run_id).settings, "those that its worker reported"
    assert trainer.read_settings(run_ids[-1]).problem is None
    assert list(trainer.read_wandb("")) == []


@pytest.mark.parametrize("case", RECORDS)
def test_a_run_with_such_a_record_is_not_imported(
    prepared: tuple[Workspace, list[str]],
    changed: tuple[TrainerClient, dict[str, bytes], list[str]],
    tmp_path: Path,
    case: str,
) -> None:
    """F45: it comes from elsewhere, so nobody needs to look at it."""
    place, run_ids = prepared
    trainer = changed[0]
    folder = RunFolder(shutil.copytree(place.run(run_ids[-1]).path, tmp_path / "copy", symlinks=True))
    change(folder.record, run_id="RUN0", **RECORDS[case][0])
    with pytest.raises(BadInput, match=r"its record.json cannot be used: .*Nothing was imported"):
        trainer.import_run(str(folder.path))
    run_id = f"RUN{list(RECORDS).index(case) + 1}"
    texts = dict.fromkeys(("notes", "reason", "env_id", "run_name"), "evil\x1b]52;c;QQ==\x1b\\")
    change(RunFolder(shutil.copytree(place.run(run_ids[-1]).path, tmp_path / run_id, symlinks=True)).record,
           run_id=run_id, tags=["a\x1b b", "ok"], group="../../x", **texts)  # fmt: skip
    view = trainer.import_run(str(tmp_path / run_id))
    stored = json.loads(place.run(view.run_id).record.read_text())
    assert (stored["notes"], stored["tags"], stored["group"]) == (r"evil\x1b]52;c;QQ==\x1b" + "\\", ["ab", "ok"], "x")
    assert trainer.annotate_run(view.run_id, add_tags=["new"]).tags == ("ab", "ok", "new")
    trainer.delete_run(view.run_id)
