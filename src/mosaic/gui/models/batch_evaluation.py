"""The evaluation of several policies: one submission for each, and what became of it. No widget here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mosaic.api.policy_lookup import evaluation_payload
from mosaic.client import TrainerClient
from mosaic.client.trainer_client import new_submission_key
from mosaic.contracts.errors import MosaicError, NotTrusted
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import Evaluation, EvaluationBatch, RunView
from mosaic.formatting import format_count
from mosaic.gui.models.draft import field_problem, parse_value
from mosaic.gui.models.form_layout import format_value
from mosaic.statistics.curves import ConfidenceInterval
from mosaic.submission.algorithm_schema import supported_options

BATCH_FIELDS = tuple(
    OPTIONS[name]
    for name in ("eval_batch_size", "eval_stochastic", "seed_override", "eval_capture_video", "record_steps", "tags")
)


@dataclass(frozen=True)
class PolicyJob:
    """The evaluation of one run's policy."""

    trained: RunView
    evaluation: RunView | None = None
    """Its run; None before it was submitted, and where it was refused."""
    problem: str = ""
    """Why it was refused."""

    @property
    def is_over(self) -> bool:
        return bool(self.problem) or (self.evaluation is not None and self.evaluation.stage == "finished")


def batch_fields(worker: str) -> tuple[SettingField, ...]:
    """The settings that apply to all policies, as far as the worker supports them."""
    return tuple(option for option in BATCH_FIELDS if option in supported_options(worker))


def batch_problems(fields: Sequence[SettingField], texts: Mapping[str, str]) -> dict[str, str]:
    problems = {field.name: field_problem(field, _text(field, texts)) for field in fields}
    return {name: problem for name, problem in problems.items() if problem}


def batch_options(fields: Sequence[SettingField], texts: Mapping[str, str]) -> dict[str, Any]:
    return {field.name: parse_value(field, _text(field, texts)) for field in fields}


def _text(field: SettingField, texts: Mapping[str, str]) -> str:
    return texts.get(field.name, format_value(field.default))


class BatchSubmission:
    """Submits the evaluations. It can be called again: what was submitted stays, what was not trusted is tried."""

    def __init__(self, trained: Sequence[RunView], options: Mapping[str, Any], checkpoint: str) -> None:
        self.jobs = [PolicyJob(view) for view in trained]
        self._keys = [new_submission_key() for _ in trained]
        self._options = options
        self._checkpoint = checkpoint

    def __call__(self, trainer: TrainerClient, is_trusted: bool = False) -> list[PolicyJob]:
        """Raise NotTrusted if code of imported runs would be executed, after the others were submitted."""
        refusal: NotTrusted | None = None
        for number, job in enumerate(self.jobs):
            if job.evaluation is not None:
                continue
            try:
                payload = evaluation_payload(trainer, job.trained.run_id, self._options, self._checkpoint)
                view = trainer.submit(payload, None, is_trusted, self._keys[number])
                self.jobs[number] = PolicyJob(job.trained, view)
            except NotTrusted as error:
                refusal = refusal or error
                self.jobs[number] = replace(job, problem="Not evaluated: it would execute code of an imported run.")
            except MosaicError as error:
                self.jobs[number] = replace(job, problem=str(error))
        if refusal is not None and not is_trusted:
            raise refusal
        return self.jobs


def format_job(job: PolicyJob, view: RunView | None, summary: EvaluationBatch | None, episodes: int) -> str:
    """What a row says about its progress: `running, 12 of 50 episodes`. `view` is its evaluation's now."""
    if job.problem:
        return job.problem
    if view is None:
        return "not started"
    if view.outcome in ("failed", "lost", "rejected"):
        return f"{view.status}: {view.reason or 'see its log'}"
    if view.stage == "finished":
        return view.status
    played = max(view.episodes, summary.episodes if summary is not None else 0)
    return f"{view.status}, {format_count(played)} of {format_count(episodes)} episodes" if played else view.status


def mean_of(evaluation: Evaluation | None) -> ConfidenceInterval | None:
    if evaluation is None or evaluation.summary.avg_return is None:
        return None
    nan = float("nan")
    return ConfidenceInterval(evaluation.summary.avg_return, *(evaluation.summary.ci95 or (nan, nan)))
