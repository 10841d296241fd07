"""Workspaces that released versions wrote (scripts/workspace_fixture.py) are opened by this version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.helpers.commands import mosaic

from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.connect import connect

FIXTURES = sorted((Path(__file__).parents[1] / "data").glob("workspace-*"))


@pytest.mark.may_log("index_rebuilt")
@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_a_workspace_of_a_release_is_read_evaluated_resumed_and_exported(
    fixture: Path, workspace: Workspace, tmp_path: Path
) -> None:
    """In another place than the one where it was written, and without its index."""
    shutil.copytree(fixture, workspace.root, symlinks=True)
    runs = json.loads((workspace.root / "contents.json").read_text())["runs"]
    first, second = runs["first_seed"], runs["second_seed"]

    with connect(workspace) as trainer:
        views = {view.run_id: view for view in trainer.runs(include_archived=True)}
        assert set(runs.values()) - {runs["deleted"]} == set(views)
        assert {view.outcome for view in views.values()} == {"succeeded"}
        assert not any(view.problem for view in views.values())
        assert [views[run].group for run in (first, second)] == ["pair", "pair"]
        assert (views[first].tags, views[first].notes) == (("good",), "The first seed of the pair.")
        assert [view.run_id for view in views.values() if view.is_archived] == [runs["archived"]]
        assert (views[first].global_step, views[first].checkpoint_step) == (512, 512)
        for run in (first, second, runs["archived"]):
            (series,) = trainer.metrics(run, ["charts/episodic_return"])
            assert 0 < max(series.steps) <= (views[run].global_step or 0)
        assert list(trainer.episodes(runs["script"]))
        assert views[runs["evaluation"]].kind == "policy_eval"

    refused = mosaic(workspace, "eval", second, "--episodes", "2", "--json")
    assert (refused.code, "mosaic workspace trust" in refused.json["error"]) == (2, True)
    assert mosaic(workspace, "workspace", "trust", "--yes").code == 0
    evaluated = mosaic(workspace, "eval", second, "--episodes", "2", "--json")
    assert (evaluated.code, evaluated.json["episodes"]) == (0, 2), evaluated.err
    resumed = mosaic(workspace, "resume", first, "--total-timesteps", "768", "--follow", "--json")
    assert (resumed.code, resumed.json["global_step"]) == (0, 768), resumed.err
    assert mosaic(workspace, "import", str(workspace.root / "trainer" / "trash" / runs["deleted"])).code == 0
    zipped = tmp_path / "run.zip"
    assert mosaic(workspace, "export", second, "--zip", str(zipped)).code == 0
    assert mosaic(workspace, "delete", second, "--yes").code == 0
    imported = mosaic(workspace, "import", str(zipped), "--json")
    assert imported.code == 0, imported.err
    listed = {view["run_id"]: view for view in mosaic(workspace, "runs", "--all", "--json").json}
    assert listed[imported.json["run_id"]]["outcome"] == listed[runs["deleted"]]["outcome"] == "succeeded"
