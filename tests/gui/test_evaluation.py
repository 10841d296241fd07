"""An evaluation in the window: the form that asks for one, its results, and the leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QCheckBox, QComboBox, QLabel, QLineEdit, QTableWidget
from tests.helpers.evaluations import batch, evaluation
from tests.helpers.gui import awaited, click, find, press, pump, settle, type_text
from tests.helpers.gui_runs import FakeTrainer, run_id, start_with, view

from mosaic.contracts.errors import BadInput
from mosaic.contracts.events import decode_event
from mosaic.contracts.states import Stage
from mosaic.contracts.views import CheckpointInfo, EnvironmentListing, Evaluation, TrainedRun
from mosaic.features.evaluate.window_results import Histogram, bin_values
from mosaic.window.app import Application

EVALUATION = 0
"""Not the newest: that one is looked at when the window opens."""
TRAINED = 1
OTHER = 2


class Evaluating(FakeTrainer):
    """One evaluation of one trained policy."""

    def __init__(self) -> None:
        super().__init__([view(OTHER), view(TRAINED), view(EVALUATION, kind="policy_eval", checkpoint_step=None)])
        self.stored_evaluations: list[Evaluation] = []
        self.described: dict[str, dict[str, Any]] = {}

    def read_evaluations(self, run: str = "", env_id: str = "") -> Iterator[Evaluation]:
        return iter([one for one in self.stored_evaluations if run in ("", one.run_id)])

    def environments(self, worker: str, family: str = "") -> list[EnvironmentListing]:
        return [EnvironmentListing(id="Acrobot-v1", family="classic_control", is_installed=True, extra="train")]

    def inspect_checkpoint(self, worker: str, path: str) -> CheckpointInfo:
        known = next((fields for end, fields in self.described.items() if path.endswith(end)), None)
        if known is None:
            raise BadInput(f"There is no file {path}.")
        return CheckpointInfo.model_validate({"path": path, **known})


def create_evaluation(number: int, *batches: list[float], **fields: Any) -> Evaluation:
    trained = TrainedRun(run_id=run_id(TRAINED), algo="ppo", seed=1)
    of_run = fields.pop("run_id", run_id(EVALUATION))
    return evaluation(number, *batches, **{"trained": trained, **fields}).model_copy(update={"run_id": of_run})


@pytest.fixture
def trainer() -> Evaluating:
    return Evaluating()


@pytest.fixture
def shown(program: Application, trainer: Evaluating) -> Application:
    start_with(program, trainer)
    program.window.resize(1366, 768)
    program.window.show()
    return program


def cells(table: QTableWidget, row: int) -> list[str]:
    items = [table.item(row, column) for column in range(table.columnCount() - 1)]
    return [item.text() for item in items if item is not None]


# --- its results


def test_the_overview_of_an_evaluation_shows_batches_and_confidence_interval(
    shown: Application, trainer: Evaluating
) -> None:
    trainer.stored_evaluations = [create_evaluation(1, [1.0, 3.0], [2.0, 2.0])]
    shown.workbench.select(run_id(EVALUATION), "overview")
    table = awaited(shown.window, "evaluation.batches", QTableWidget)
    pump(lambda: table.rowCount() == 2, "the batches")
    assert cells(table, 0) == ["2", "2", "2  [1, 3]", "2", "2", "2", "0.5s"]
    histogram = find(shown.window, "evaluation.histogram", Histogram)
    assert histogram.isVisible()
    assert histogram.values.tolist() == [1.0, 3.0, 2.0, 2.0]
    assert find(shown.window, "overview.return", QLabel).text() == "2"
    assert find(shown.window, "overview.steps", QLabel).text() == "10"
    shown.workbench.select(run_id(TRAINED), "overview")
    assert find(shown.window, "overview.chart").isVisible()
    assert not histogram.isVisible()


def test_the_result_of_a_run_that_still_trains_names_its_checkpoint(shown: Application, trainer: Evaluating) -> None:
    trained = TrainedRun(run_id=run_id(TRAINED), stage=Stage.RUNNING)
    trainer.stored_evaluations = [create_evaluation(1, [1.0, 3.0], trained=trained)]
    shown.workbench.select(run_id(EVALUATION), "overview")
    title = awaited(shown.window, "evaluation.title", QLabel)
    pump(lambda: title.text().endswith("\nIts training has not ended; this is step 512."), "the sentence")
    trainer.stored_evaluations = [create_evaluation(1, [1.0, 3.0])]
    shown.workbench.select(run_id(OTHER), "overview")
    shown.workbench.select(run_id(EVALUATION), "overview")
    pump(lambda: "has not ended" not in title.text(), "the end of the training")


def test_new_batches_are_added_to_a_visible_evaluation(shown: Application, trainer: Evaluating) -> None:
    shown.workbench.select(run_id(EVALUATION), "overview")
    table = awaited(shown.window, "evaluation.batches", QTableWidget)
    trainer.stored_evaluations = [create_evaluation(1, [1.0, 3.0])]
    event = decode_event(
        {
            "seq": 1,
            "at": 1.0,
            "kind": "eval_summary_update",
            "run_id": run_id(EVALUATION),
            "summary": batch(1, [1.0, 3.0]),
        }
    )
    shown.bridge.events_received.emit([event])
    pump(lambda: table.rowCount() == 1, "the first batch")
    lines = [line.text for line in shown.workbench.events.lines if line.kind == "eval_summary_update"]
    assert lines == ["eval batch 1 | episodes=2 avg=2.0 min=1.0 max=3.0"]


def test_the_fastlane_tab_shows_the_last_batch_and_links_to_the_results(
    shown: Application, trainer: Evaluating
) -> None:
    trainer.stored_evaluations = [create_evaluation(1, [1.0, 3.0], [2.0, 4.0])]
    shown.workbench.select(run_id(EVALUATION), "fastlane")
    line = awaited(shown.window, "fastlane.eval", QLabel)
    pump(lambda: line.text() == "eval batch 2 | episodes=2 avg=3.0 min=2.0 max=4.0", "the last batch")
    assert find(shown.window, "run.title", QLabel).text().endswith("(Eval)")
    click(find(shown.window, "fastlane.next"))
    pump(awaited(shown.window, "evaluation.histogram").isVisible, "the results")


@pytest.mark.parametrize(
    ("values", "counts"),
    [([500.0] * 7, [7]), ([], []), ([np.nan, 1.0], [1]), ([0.0, 1.0, 1.0, 10.0], [3, 0, 0, 0, 1])],
)
def test_returns_are_counted_in_bins(values: list[float], counts: list[int]) -> None:
    bin_counts, edges = bin_values(np.array(values))
    assert bin_counts.tolist() == counts
    assert len(edges) == len(counts) + 1


@pytest.mark.parametrize("values", [[], [3.0], [5.0] * 4, [-1e6, 2e6], [np.nan], list(range(200))])
def test_any_values_have_a_histogram(qapp: QApplication, values: list[float]) -> None:
    histogram = Histogram("h")
    histogram.resize(300, 120)
    histogram.show_values(np.array(values, np.float64), Qt.GlobalColor.blue)  # type: ignore[arg-type]
    assert not histogram.grab().isNull()
    histogram.close()
    histogram.deleteLater()
    settle()


# --- the leaderboard


def test_the_leaderboard_ranks_policies_and_links_to_their_runs(shown: Application, trainer: Evaluating) -> None:
    other = {"run_id": run_id(OTHER), "run_name": None, "algo": "ppo", "seed": 1}
    trainer.stored_evaluations = [
        create_evaluation(2, [500.0, 500.0]),
        create_evaluation(1, [100.0, 110.0], trained=other, run_id=run_id(7)),
        create_evaluation(0, [-80.0, -90.0], env_id="Acrobot-v1", deterministic=False),
    ]
    shown.workbench.page_requested.emit("leaderboard")
    table = find(shown.window, "leaderboard.places", QTableWidget)
    pump(lambda: table.rowCount() == 3, "the policies")
    assert cells(table, 0)[:3] == ["1", "ppo (stochastic) · seed 1 · 000001", "Acrobot-v1"]
    assert cells(table, 1)[:7] == ["1", "ppo · seed 1 · 000001", "CartPole-v1", "512", "2", "500", "500"]
    env = find(shown.window, "leaderboard.env", QComboBox)
    env.setCurrentIndex(env.findData("CartPole-v1"))
    assert [cells(table, row)[0] for row in range(table.rowCount())] == ["1", "2"]
    assert not find(shown.window, "leaderboard.evaluation").isEnabled()
    table.selectRow(0)
    press(table, Qt.Key.Key_Return)
    assert shown.workbench.selection == run_id(EVALUATION)
    shown.workbench.page_requested.emit("leaderboard")
    table.selectRow(1)
    click(find(shown.window, "leaderboard.trained"))
    assert shown.workbench.selection == run_id(OTHER)


def test_an_empty_leaderboard_links_to_the_form(shown: Application) -> None:
    shown.workbench.page_requested.emit("leaderboard")
    click(find(shown.window, "leaderboard.start"))
    assert shown.window.current_page == "policy"


# --- the form


def open_form(shown: Application, trainer: Evaluating, path: str, **fields: Any) -> Callable[[str], QComboBox]:
    trainer.described = {path: {"kind": "cleanrl_model", **fields}}
    shown.workbench.page_requested.emit("policy")
    type_text(find(shown.window, "policy.path", QLineEdit), path)
    pump(lambda: find(shown.window, "policy.info", QLabel).text().startswith("Model file"), "what the file says")
    return lambda name: find(shown.window, f"policy.{name}", QComboBox)


def submitted(trainer: Evaluating) -> dict[str, Any]:
    [payload] = [asked[1] for asked in trainer.asked if asked[0] == "submit"]
    assert isinstance(payload, dict)
    return payload


def test_a_file_with_a_run_is_watched_as_the_run_was(shown: Application, trainer: Evaluating) -> None:
    """R8.1: policy form."""
    trainer.payload["artifacts"] = {"video": {"mode": "single", "grid_limit": 3}}
    choice = open_form(
        shown, trainer, "ppo.cleanrl_model", run_id=run_id(TRAINED), algo="ppo", env_id="Acrobot-v1", seed=4
    )
    assert choice("algorithm").currentText() == "ppo"
    assert choice("env_id").currentText() == "Acrobot-v1"
    assert find(shown.window, "policy.seed", QLabel).text() == "4"
    assert choice("video_mode").currentText() == "single"
    assert find(shown.window, "policy.grid_limit", QLineEdit).text() == "3"
    assert not choice("algorithm").isEnabled()
    assert (choice("family").currentText(), choice("family").isEnabled()) == ("Classic control", False)
    find(shown.window, "policy.fastlane_only", QCheckBox).click()
    find(shown.window, "policy.eval_stochastic", QCheckBox).click()
    find(shown.window, "policy.eval_repeat", QCheckBox).click()
    find(shown.window, "policy.submit").click()  # type: ignore[attr-defined]
    pump(lambda: any(asked[0] == "submit" for asked in trainer.asked), "the payload")
    payload = submitted(trainer)
    config = payload["metadata"]["worker"]["config"]
    assert config == {"algo": "ppo", "env_id": "Acrobot-v1", "seed": 4}
    assert payload["artifacts"]["video"] == {
        "mode": "single", "grid_limit": 3, "fastlane_only": True, "capture_evaluation": False,
    }  # fmt: skip
    assert payload["evaluation"]["stochastic"] is payload["evaluation"]["repeat"] is True
    assert payload["metadata"]["ui"] == {"eval_batch_size": 50, "eval_repeat": True}


def test_a_model_file_without_a_run_needs_algorithm_and_environment(
    shown: Application, trainer: Evaluating, tmp_path: Path
) -> None:
    choice = open_form(shown, trainer, "bare.cleanrl_model", algo=None, env_id=None, seed=None)
    assert find(shown.window, "policy.override", QCheckBox).isChecked()
    find(shown.window, "policy.submit").click()  # type: ignore[attr-defined]
    verdict = find(shown.window, "policy.verdict", QLabel)
    assert verdict.text() == "2 settings to correct: Algorithm and Environment."
    assert find(shown.window, "policy.note.env_id", QLabel).text() == "Required."
    choice("env_id").setEditText("CartPole-v1")
    find(shown.window, "policy.submit").click()  # type: ignore[attr-defined]
    assert verdict.text() == "Algorithm: Choose the one that it was trained with."
    algorithm = choice("algorithm")
    algorithm.setCurrentIndex(algorithm.findText("ppo"))
    algorithm.activated.emit(algorithm.currentIndex())
    find(shown.window, "policy.submit").click()  # type: ignore[attr-defined]
    pump(lambda: any(asked[0] == "submit" for asked in trainer.asked), "the payload")
    config = submitted(trainer)["metadata"]["worker"]["config"]
    assert (config["algo"], config["env_id"]) == ("ppo", "CartPole-v1")
    assert submitted(trainer)["evaluation"]["policy_path"] == "bare.cleanrl_model"
