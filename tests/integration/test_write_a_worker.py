"""docs/guides/worker.md and algorithm.md are run as a reader would: their code installed by its own declaration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import ended, wait_for
from tests.helpers.documents import Block, commands, read_blocks

from mosaic.contracts.events import EVENT_TYPES
from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def blocks(language: str) -> list[str]:
    return [block.text for block in read_blocks(GUIDES / "worker.md") if block.language == language]


def install(site: Path, document: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files of a guide where processes find them, with the package that its TOML declares."""
    project = tomllib.loads(next(block.text for block in document if block.language == "toml"))["project"]
    information = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    declared = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    (information / "entry_points.txt").write_text(declared)
    for block in document:
        if block.file is not None:
            (site / block.file).write_text(block.text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])]))


@pytest.fixture
def payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The document's config, with its worker where the daemon finds it."""
    install(tmp_path / "site", read_blocks(GUIDES / "worker.md"), monkeypatch)
    given: dict[str, Any] = json.loads(blocks("json")[0])
    return given


def steps(trainer: TrainerClient, run_id: str) -> int:
    return trainer.get_run(run_id).global_step or 0


def test_the_worker_of_the_document_runs_to_its_end(workspace: Workspace, payload: dict[str, Any]) -> None:
    with connect(workspace) as trainer:
        view = ended(trainer, trainer.submit(payload).run_id)
        (best,) = trainer.metrics(view.run_id, ["bandit/best_value"], last_only=True)
    assert view.outcome == "succeeded", view.reason
    assert view.global_step == view.total_timesteps == view.episodes == 20_000
    assert view.tags == ("first",)
    assert best.values[-1] == pytest.approx(0.8, abs=0.05)
    assert list(Path(view.run_dir, "tensorboard").glob("events.out.tfevents.*"))


def test_the_worker_of_the_document_is_cancelled_and_resumes(workspace: Workspace, payload: dict[str, Any]) -> None:
    payload["metadata"]["worker"]["config"]["total_timesteps"] = 10**9
    with connect(workspace) as trainer:
        run_id = trainer.submit(payload).run_id
        wait_for(lambda: steps(trainer, run_id), "the first steps")
        trainer.cancel_run(run_id)
        cancelled = ended(trainer, run_id)
        assert cancelled.outcome == "cancelled"
        saved_at = cancelled.checkpoint_step or 0
        assert saved_at > 0
        trainer.resume(run_id)
        wait_for(lambda: steps(trainer, run_id) > saved_at, "steps behind the checkpoint")
        trainer.cancel_run(run_id)
        assert (ended(trainer, run_id).checkpoint_step or 0) > saved_at


def test_the_worker_of_the_document_takes_less_than_sixty_lines() -> None:
    assert len(blocks("python")[0].splitlines()) < 60


def test_the_lines_of_the_document_are_events_as_the_contract_has_them() -> None:
    lines = [json.loads(line) for line in blocks("json")[1].splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 3, 4, 5]
    for line in lines:
        assert not EVENT_TYPES[line["kind"]].model_validate(line).model_extra


def test_the_algorithm_of_the_document_is_explained_trained_and_compared(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = read_blocks(GUIDES / "algorithm.md")
    install(tmp_path / "site", document, monkeypatch)
    monkeypatch.setenv(WORKSPACE_VARIABLE, str(workspace.root))
    given = [words for block in document if block.language == "sh" for words in commands(block.text)]
    given[1] += ["--total-timesteps", "3000"]
    explained, trained, compared, evaluated, played = (run_mosaic(*words) for words in given)
    assert "noise" in explained
    assert trained.count("succeeded") >= 3
    assert "hill_climb" in compared
    assert "mean return" in evaluated
    assert "policy:" in played
    assert "hill_climb" in run_mosaic("leaderboard")
    with connect(workspace) as trainer:
        for view in trainer.runs(group="climbing"):
            assert (view.global_step or 0) >= 3000
            assert trainer.config(view.run_id)["metadata"]["worker"]["config"]["algo_params"] == {"noise": 0.2}
        evaluation = trainer.runs(limit=2)[1]
        assert (evaluation.kind, evaluation.outcome, evaluation.episodes) == ("policy_eval", "succeeded", 50)


def test_the_wheel_of_the_document_has_the_settings(tmp_path: Path) -> None:
    for block in read_blocks(GUIDES / "algorithm.md"):
        if block.file is not None or block.language == "toml":
            (tmp_path / (block.file or "pyproject.toml")).write_text(block.text)
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = tmp_path.glob("*.whl")
    assert {"hill_climb.py", "hill_climb_schemas.json"} <= set(zipfile.ZipFile(wheel).namelist())


def run_mosaic(*words: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "mosaic.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout
