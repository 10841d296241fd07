"""`mosaic eval`: what it sends for what was typed, and how it tells what came out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.helpers.cli_trainer import FakeContext, FakeTrainer, call, finished, record, view
from tests.helpers.evaluations import evaluation

from mosaic.base.fastlane import FrameHud
from mosaic.contracts.errors import BadInput
from mosaic.contracts.states import Stage
from mosaic.contracts.views import CheckpointInfo, Evaluation, EvaluationSummary, RunView, TrainedRun
from mosaic.features.evaluate.api import is_policy_path
from mosaic.features.evaluate.cli import MAX_BINS, format_bar, histogram_rows, summary_rows
from mosaic.features.watch.cli import FrameSource, RunPoller, status_lines
from mosaic.worker.evaluation import Episode, summarize

Json = dict[str, Any]
FOUND = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3}


class Evaluates(FakeTrainer):
    """A daemon whose evaluations end at once, with a summary of these returns."""

    def __init__(self, place: Path, returns: list[float], outcome: str = "succeeded") -> None:
        run = view(run_dir=str(place / "trained"), stage="finished", outcome="succeeded")
        super().__init__(run)
        self.config_json["metadata"]["worker"]["config"] = {**FOUND, "algo": "ppo", "seed": 1}
        self.inspected: list[str] = []
        self._place = place
        self._returns = returns
        self._outcome = outcome
        self.summaries: dict[str, EvaluationSummary] = {}
        self.trained: TrainedRun | None = None
        self.is_deterministic = True

    def read_evaluations(self, run: str) -> Iterator[Evaluation]:
        if run in self.summaries:
            yield Evaluation(
                run_id=run, stage=Stage.FINISHED, evaluated_at=1.0, summary=self.summaries[run], trained=self.trained
            )

    def submit(
        self, payload: Json, environment: dict[str, str] | None = None, is_trusted: bool = False, key: str = ""
    ) -> RunView:
        run = super().submit(payload, environment)
        folder = self._place / run.run_id
        folder.mkdir()
        if self._returns:
            episodes = [Episode(at, at, value, 1) for at, value in enumerate(self._returns)]
            batch = summarize(episodes)
            summary = {**batch, "batches": [batch], "deterministic": self.is_deterministic}
            self.summaries[run.run_id] = EvaluationSummary.model_validate(summary)
        self.views[run.run_id] = finished(run, self._outcome, kind="policy_eval", run_dir=str(folder))
        self.scripts = [[record(self.views[run.run_id])]]
        return run

    def inspect_checkpoint(self, worker: str, path: str) -> CheckpointInfo:
        self.inspected.append(path)
        if "bad" in path:
            raise BadInput("It is damaged.")
        return CheckpointInfo.model_validate({**FOUND, "path": path})

    @property
    def evaluation_sent(self) -> Json:
        sent: Json = self.submitted[-1]["evaluation"]
        return sent

    @property
    def config_sent(self) -> Json:
        config: Json = self.submitted[-1]["metadata"]["worker"]["config"]
        return config


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "trained" / "checkpoints" / "512").mkdir(parents=True)
    (tmp_path / "trained" / "checkpoints" / "512" / "manifest.json").touch()
    (tmp_path / "trained" / "checkpoints" / "last").symlink_to("512")
    return tmp_path


def test_a_run_is_evaluated_by_its_last_checkpoint_over_fifty_episodes(place: Path) -> None:
    trainer = Evaluates(place, [1.0, 2.0])
    result = call(trainer, "eval", "last", "--json")
    assert result.code == 0, result.err
    assert trainer.config_sent == {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1}
    assert trainer.submitted[-1]["kind"] == "policy_eval"
    assert trainer.evaluation_sent == {"policy_path": str(place / "trained/checkpoints/512"), "episodes": 50}
    assert trainer.submitted[-1]["artifacts"]["video"] == {"capture_evaluation": False}
    assert set(json.loads(result.out)) == {
        "episodes", "avg_return", "median_return", "min_return", "max_return", "std_return", "iqm", "ci95", "returns",
        "run_id",
    }  # fmt: skip


def test_every_option_is_in_the_payload(place: Path) -> None:
    trainer = Evaluates(place, [1.0])
    words = "--episodes 7 --video --stochastic --seed-override 9 --env-id CartPole-v0 --algo ppo --grid 4 --repeat"
    words += " --video-mode single --fastlane-only"
    assert call(trainer, "eval", "last", *words.split()).code == 0
    assert trainer.config_sent["env_id"] == "CartPole-v0"
    trainer.evaluation_sent.pop("policy_path")
    assert trainer.evaluation_sent == {"episodes": 7, "seed": 9, "repeat": True, "stochastic": True}
    assert trainer.submitted[-1]["artifacts"]["video"] == {
        "capture_evaluation": True, "mode": "single", "grid_limit": 4, "fastlane_only": True,
    }  # fmt: skip
    assert trainer.submitted[-1]["metadata"]["ui"] == {"eval_batch_size": 7, "eval_repeat": True}


def test_a_path_is_inspected_for_its_algorithm_and_environment(place: Path) -> None:
    model = place / "it's.cleanrl_model"
    model.touch()
    trainer = Evaluates(place, [1.0])
    assert call(trainer, "eval", str(model)).code == 0
    assert trainer.inspected == [str(model)]
    assert trainer.config_sent["seed"] == 3
    assert trainer.evaluation_sent["policy_path"] == str(model)


def test_what_cannot_be_evaluated_is_refused_before_anything_is_submitted(place: Path) -> None:
    (place / "bad.pt").touch()
    trainer = Evaluates(place, [1.0])
    for words, sentence in (
        ((str(place / "bad.pt"),), "It is damaged."),
        ((str(place / "nothing.pt"),), "There is no file or folder"),
        ((str(place / "bad.pt"), "--checkpoint", "best"), "a path names one already"),
    ):
        result = call(trainer, "eval", *words)
        assert (result.code, sentence in result.err) == (2, True), result.err
    assert trainer.submitted == []


def test_a_run_that_saved_a_model_and_no_checkpoint_is_evaluated_by_it(place: Path) -> None:
    shutil.rmtree(place / "trained" / "checkpoints")
    model = place / "trained" / "runs" / "CartPole-v1__ppo__1__1" / "ppo.cleanrl_model"
    model.parent.mkdir(parents=True)
    model.touch()
    trainer = Evaluates(place, [1.0])
    assert call(trainer, "eval", "last").code == 0
    assert trainer.evaluation_sent["policy_path"] == str(model)


def test_an_evaluation_means_the_policy_that_it_evaluated(place: Path) -> None:
    trainer = Evaluates(place, [1.0])
    earlier = finished(view("01EARLIER", kind="policy_eval"))
    trainer.views[earlier.run_id] = earlier
    trainer.config_json["evaluation"] = {"policy_path": "/some/where", "episodes": 2}
    assert call(trainer, "eval", "01EARLIER").code == 0
    assert trainer.evaluation_sent["policy_path"] == "/some/where"
    assert trainer.evaluation_sent["episodes"] == 50


def test_a_repeated_evaluation_that_is_cancelled_has_succeeded(place: Path) -> None:
    result = call(Evaluates(place, [1.0, 2.0], "cancelled"), "eval", "last", "--repeat")
    assert (result.code, "mean return" in result.out) == (0, True)


@pytest.mark.parametrize("returns", [[1.0, 2.0], []])
def test_a_cancelled_evaluation_prints_its_summary(place: Path, returns: list[float]) -> None:
    result = call(Evaluates(place, returns, "cancelled"), "eval", "last")
    assert result.code == 130
    assert ("mean return" in result.out) == bool(returns)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("last", False), ("01M7FFSF8T", False), ("./512", True), ("a/b", True), ("x.cleanrl_model", True), ("~", True)],
)
def test_paths_and_run_ids_are_distinguished(text: str, is_one: bool) -> None:
    assert is_policy_path(text) is is_one


def test_the_summary_has_mean_interval_median_and_histogram(place: Path) -> None:
    result = call(Evaluates(place, [10.0, 20.0, 20.0, 30.0]), "eval", "last")
    assert "20 (Student's 95 % interval: 7.008 to 32.99)" in result.out
    assert "20 on average (IQM)" in result.out
    assert "10, 30" in result.out
    assert [line.split()[-2:] for line in result.out.splitlines()[-3:]] == [
        ["1", "█" * 20],
        ["2", "█" * 40],
        ["1", "█" * 20],
    ]
    assert "\x1b" not in result.out


@pytest.mark.parametrize("stage", [Stage.RUNNING, Stage.FINISHED])
def test_the_result_of_a_run_that_still_trains_says_so(place: Path, stage: Stage) -> None:
    trainer = Evaluates(place, [1.0, 2.0])
    trainer.trained = TrainedRun(run_id="01TRAINED", stage=stage)
    result = call(trainer, "eval", "last")
    assert ("Its training has not ended." in result.out) == (stage == "running")


@pytest.mark.parametrize(
    ("is_deterministic", "training_return", "acted"),
    [
        (True, -152.1, "deterministic; training return -152.1, exploring; --stochastic samples"),
        (False, -152.1, "sampled; training return -152.1, exploring"),
        (True, None, "deterministic; --stochastic samples"),
    ],
)
def test_an_evaluation_says_how_it_acted_and_the_return_of_the_training(
    place: Path, is_deterministic: bool, training_return: float | None, acted: str
) -> None:
    trainer = Evaluates(place, [1.0, 2.0])
    trainer.is_deterministic = is_deterministic
    trainer.trained = TrainedRun(run_id="01TRAINED", episodic_return=training_return)
    lines = call(trainer, "eval", "last").out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.split()[:1] == ["acted"]] == [acted]


def test_one_episode_has_no_interval() -> None:
    rows = dict(summary_rows(evaluation(1, [5.0], **summarize([Episode(0, 0, 5.0, 1)]))))
    assert rows["mean return"] == "5 (no interval: it needs at least two episodes)"


def test_a_histogram_counts_every_figure_once() -> None:
    for values in ([1.0], [2.0, 2.0], [0.0, 1.0, 2.0, 3.0], [float(value) for value in range(1000)]):
        rows = histogram_rows(values)
        assert sum(count for _, _, count in rows) == len(values)
        assert 1 <= len(rows) <= MAX_BINS
    assert [span for span, _, _ in histogram_rows([7.0, 7.0])] == ["7"]
    assert histogram_rows([None, float("nan")]) == []
    assert (format_bar(0.5, 4), format_bar(1, 4), format_bar(0, 4), format_bar(1 / 32, 4)) == ("██", "████", "", "▏")


HUD = FrameHud(0, 1, 2, 5, 1.0, 5.0, 0.0, 30.0, 0.015, 0.012, False)
SOURCE = cast(FrameSource, SimpleNamespace(state="connected", reason="", huds=[HUD]))


def test_watching_an_evaluation_shows_its_last_batch() -> None:
    line = "eval batch 3 | episodes=50 avg=112.3 min=90.1 max=142.6"
    first, _ = status_lines(view(kind="policy_eval"), SOURCE, 30.0, True, line)
    assert f"(Eval)  {line}  env 0  episode 2" in first
    assert "(Eval)" not in status_lines(view(), SOURCE, 30.0, True)[0]


@pytest.mark.parametrize(
    ("batches", "line"),
    [([[0.0, 1.0], [0.5, 1.5]], "eval batch 2 | episodes=2 avg=1.0 min=0.5 max=1.5"), ([], "")],
)
def test_the_last_batch_is_read_from_the_daemon(batches: list[list[float]], line: str, tmp_path: Path) -> None:
    class Evaluating(FakeTrainer):
        def read_evaluations(self, run: str) -> Iterator[Evaluation]:
            if batches:
                yield evaluation(1, *batches)

    run = view(kind="policy_eval")
    poller = RunPoller(FakeContext(Evaluating(run), tmp_path), run)
    assert not poller.has_ended
    assert poller.eval_line == line
