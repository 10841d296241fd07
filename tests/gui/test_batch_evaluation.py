"""The policies of several runs are evaluated at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from PySide6.QtWidgets import QLabel, QLineEdit, QPushButton
from tests.helpers.gui import click, find, pump, question_button
from tests.helpers.gui_runs import FakeTrainer, run_id, show_active, start_with, view

from mosaic.contracts.errors import NotAllowed, NotTrusted
from mosaic.contracts.states import Stage
from mosaic.contracts.views import Evaluation, EvaluationSummary, RunView
from mosaic.features.evaluate import window_model as policy_form
from mosaic.features.evaluate.window_batch import BatchEvaluation
from mosaic.window.app import Application

FIRST, SECOND, THIRD, UNTRAINED = (run_id(number) for number in range(1, 5))


class Evaluating(FakeTrainer):
    """Evaluates at once; one policy is refused, another needs trust."""

    def __init__(self, views: list[RunView]) -> None:
        super().__init__(views)
        self.refused: dict[str, Exception] = {}
        self.results: list[Evaluation] = []

    def read_evaluations(self, run: str = "", env_id: str = "") -> Iterator[Evaluation]:
        yield from self.results

    def submit(self, payload: Any, environment: Any = None, is_trusted: bool = False, key: str = "") -> RunView:
        error = self.refused.get(payload["run"])
        if error is not None and not (is_trusted and isinstance(error, NotTrusted)):
            raise error
        made = view(9000 + int(payload["run"][-5:]), kind="policy_eval", stage="queued", outcome=None, episodes=0)
        self.views[made.run_id] = made
        self.asked.append(("submit", payload["run"], payload["options"], payload["checkpoint"]))
        return made

    def finish(self, number: int, mean: float, outcome: str = "succeeded") -> RunView:
        ended = view(9000 + number, kind="policy_eval", outcome=outcome, reason="It ended with exit code 3.")
        self.views[ended.run_id] = ended
        if outcome == "succeeded":
            summary = EvaluationSummary(
                batch=1, episodes=20, avg_return=mean, ci95=(mean - 1, mean + 1), duration_s=1.0
            )
            self.results.append(
                Evaluation(run_id=ended.run_id, stage=Stage.FINISHED, evaluated_at=1.0, summary=summary)
            )
        return ended


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Evaluating:
    def payload(_: object, run: str, options: dict[str, Any], checkpoint: str) -> dict[str, Any]:
        return {"run": run, "options": options, "checkpoint": checkpoint}

    monkeypatch.setattr(policy_form, "evaluation_payload", payload)
    return Evaluating([view(1), view(2, seed=2), view(3, seed=3), view(4, checkpoint_step=None)])


@pytest.fixture
def form(program: Application, trainer: Evaluating) -> BatchEvaluation:
    """Of the three chosen runs that have a policy."""
    start_with(program, trainer)
    show_active(program)
    program.workbench.mark([UNTRAINED, THIRD, SECOND, FIRST])
    program.window.refresh_actions()
    action = program.window.action("run.evaluate")
    assert action.text() == "Evaluate 3 runs…"
    action.trigger()
    form = program.window.findChild(BatchEvaluation)
    assert form is not None
    assert form.isVisible()
    return form


def rows(form: BatchEvaluation) -> list[list[str]]:
    cells = [[form.table.item(row, column) for column in range(4)] for row in range(form.table.rowCount())]
    return [[cell.text() if cell else "" for cell in row] for row in cells]


def test_every_chosen_run_is_evaluated_with_the_same_settings(
    program: Application, form: BatchEvaluation, trainer: Evaluating
) -> None:
    assert [row[3] for row in rows(form)] == ["not started"] * 3
    find(form, "batch.eval_batch_size", QLineEdit).setText("20")
    assert form.submit_button.text() == "Evaluate 3 runs"
    click(form.submit_button)
    pump(lambda: len(trainer.asked) == 3, "the submissions")
    assert [call[1] for call in trainer.asked] == [THIRD, SECOND, FIRST]
    assert {(call[2]["eval_batch_size"], call[3]) for call in trainer.asked} == {(20, "last")}
    pump(lambda: [row[3] for row in rows(form)] == ["queued"] * 3, "the table")
    assert not form.leaderboard_button.isEnabled()
    program.workbench.runs.update([trainer.finish(3, 480.0), trainer.finish(2, 0.0, "failed")])
    pump(lambda: rows(form)[0][1].startswith("480"), "the mean")
    assert rows(form)[0][1:] == ["480  [479, 481]", "20", "succeeded"]
    assert rows(form)[1][3] == "failed: It ended with exit code 3."
    assert form.is_running
    program.workbench.runs.update([trainer.finish(1, 100.0)])
    pump(lambda: not form.is_running, "the end")
    click(form.leaderboard_button)
    assert program.window.current_page == "leaderboard"
    program.window.show_page("policy")
    assert form.isVisible(), "the results stay"
    click(form.compare_button)
    assert program.window.current_page == "compare"


def test_a_policy_that_is_refused_is_named_and_the_others_run(
    program: Application, form: BatchEvaluation, trainer: Evaluating
) -> None:
    trainer.refused[SECOND] = NotAllowed("Run 2 has no intact checkpoint.")
    click(form.submit_button)
    pump(lambda: len(trainer.asked) == 2, "the others")
    pump(lambda: rows(form)[1][3] == "Run 2 has no intact checkpoint.", "the reason")
    assert [row[3] for row in rows(form)][::2] == ["queued", "queued"]
    assert find(form, "batch.verdict", QLabel).text() == "2 evaluations submitted. 1 refused: see the table."


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_code_of_imported_runs_is_asked_about_once(
    program: Application, form: BatchEvaluation, trainer: Evaluating, answer: str
) -> None:
    for one in (FIRST, SECOND):
        trainer.refused[one] = NotTrusted.for_risk("This config was imported and would import my_envs.")
    click(form.submit_button)
    yes = question_button("trust.question.yes")
    pump(lambda: rows(form)[0][3] == "queued", "the run that needs no trust")
    assert "imported" in rows(form)[1][3]
    if answer == "yes":
        click(yes)
        pump(lambda: [row[3] for row in rows(form)] == ["queued"] * 3, "all of them")
        assert sorted(call[1] for call in trainer.asked) == [FIRST, SECOND, THIRD], "none twice"
    else:
        yes.window().close()
        assert [call[1] for call in trainer.asked] == [THIRD]


def test_an_invalid_setting_submits_nothing(form: BatchEvaluation, trainer: Evaluating) -> None:
    find(form, "batch.eval_batch_size", QLineEdit).setText("none")
    click(form.submit_button)
    assert find(form, "batch.verdict", QLabel).isVisible()
    assert trainer.asked == []


def test_the_page_takes_all_chosen_runs_and_can_return_to_one_policy(
    program: Application, form: BatchEvaluation, trainer: Evaluating
) -> None:
    click(find(form, "batch.back", QPushButton))
    assert not form.isVisible()
    program.window.show_page("run")
    program.workbench.mark([SECOND, FIRST])
    program.window.show_page("policy")
    assert form.isVisible()
    assert len(rows(form)) == 2
    program.workbench.mark([THIRD, SECOND, FIRST])
    assert len(rows(form)) == 3, "more runs are chosen while it is open"
    program.workbench.mark([FIRST])
    program.window.action("run.evaluate").trigger()
    assert not form.isVisible()
    assert program.window.current_page == "policy"
