"""Checks, submits and follows experiments."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mosaic.api.experiment_state import ExperimentRun, choose_submissions, format_counts, match_runs
from mosaic.api.yaml_file import read_yaml_file, to_plain_mapping
from mosaic.contracts.errors import BadInput, FieldProblem
from mosaic.contracts.model import refuse
from mosaic.contracts.states import Stage
from mosaic.submission.caller_environment import program_environment
from mosaic.submission.experiment_config import SUBJECT, ExperimentConfig, parse_experiment
from mosaic.submission.experiment_plan import ExperimentCell, ExperimentPlan, PlannedRun, digest

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.contracts.views import RunView, Verdict

POLL_S = 0.5
_NOUN = "The experiment"

Result = TypeVar("Result")
Call = Callable[[Callable[["TrainerClient"], Result]], Result]
"""Calls the daemon, and again if it was restarted meanwhile: a submission of an experiment may be repeated."""


def read_experiment(source: str | os.PathLike[str] | Mapping[str, Any]) -> ExperimentConfig:
    """Return the experiment that a YAML file or a mapping describes."""
    data = source if isinstance(source, Mapping) else read_yaml_file(Path(source), _NOUN)
    return parse_experiment(to_plain_mapping(data, _NOUN, "name, algorithms, environments and seeds"))


def check_cells(call: Call[Any], cells: Sequence[ExperimentCell], seed: int) -> list[Verdict]:
    """Return the workers' verdicts; raises ConfigRefused naming every combination that is refused."""
    verdicts: list[Verdict] = []
    problems: list[FieldProblem] = []
    for cell in cells:
        payload = PlannedRun(cell, seed).build_payload()
        try:
            verdicts.append(call(lambda trainer, p=payload: trainer.check(p, program_environment(p))))  # type: ignore[misc]
        except BadInput as error:
            problems.append(FieldProblem(cell.title, str(error).removeprefix("LOG705 ").rstrip(".")))
    if problems:
        raise refuse(problems, SUBJECT)
    return verdicts


def read_runs(call: Call[Any], plan: ExperimentPlan) -> list[ExperimentRun]:
    return match_runs(plan, call(lambda trainer: trainer.runs(group=plan.name, include_archived=True)))


@dataclass(frozen=True)
class SubmissionReport:
    """What a call of `submit_missing` did."""

    runs: list[ExperimentRun]
    """All runs of the experiment, as they were afterwards."""
    submitted: list[RunView]
    left: int
    """How many were not submitted because the caller was interrupted."""


def submit_missing(
    call: Call[Any],
    plan: ExperimentPlan,
    is_retry: bool = False,
    is_interrupted: Callable[[], bool] = lambda: False,
    show: Callable[[str], None] = lambda line: None,
) -> SubmissionReport:
    """Submit the runs that are missing, after a dry run of all of them.

    It may be interrupted or killed and repeated at any moment: the daemon returns a run that it has instead of creating
    it twice.
    """
    chosen = choose_submissions(read_runs(call, plan), is_retry)
    if chosen:
        cells = list(dict.fromkeys(planned.cell.settings_key for planned, _ in chosen))
        check_cells(call, [cell for cell in plan.cells if cell.settings_key in cells], plan.seeds[0])
    submitted: list[RunView] = []
    for planned, attempt in chosen:
        if is_interrupted():
            break
        payload = planned.build_payload(attempt)
        submitted.append(call(lambda trainer, p=payload: trainer.submit(p, program_environment(p))))  # type: ignore[misc]
        show(f"{len(submitted)} of {len(chosen)} submitted")
    return SubmissionReport(read_runs(call, plan), submitted, len(chosen) - len(submitted))


def retry_run(trainer: TrainerClient, view: RunView, is_trusted: bool = False) -> RunView:
    """Submit a run of an experiment again as its next attempt, with the config that it had."""
    if view.experiment is None:
        raise BadInput(f"Run {view.run_id} is not part of an experiment: submit it again as a run of its own.")
    config = dict(trainer.config(view.run_id))
    member = view.experiment.model_copy(update={"attempt": view.experiment.attempt + 1})
    config["metadata"] = {**config["metadata"], "experiment": member.model_dump(mode="json")}
    return trainer.submit(config, program_environment(config), is_trusted)


def repeat_member(
    view: RunView, config: Mapping[str, Any], changed: Mapping[str, Any], members: Iterable[RunView]
) -> dict[str, Any]:
    """Return the place of a run that is submitted again with changes, to a group with these `members`; by its key.

    Empty where it is of no experiment, or trains something else than its labels say.
    """
    before, after = (payload["metadata"]["worker"]["config"] for payload in (config, changed))
    if view.experiment is None or any(before.get(name) != after.get(name) for name in ("algo", "env_id")):
        return {}
    place = view.experiment
    if before != after:
        without_seed = {name: value for name, value in after.items() if name != "seed"}
        place = place.model_copy(
            update={
                "key": digest({"repeats": place.key, "config": after}),
                "settings_key": digest({"repeats": place.settings_key, "config": without_seed}),
            }
        )
    earlier = (one.experiment.attempt for one in members if one.experiment and one.experiment.key == place.key)
    place = place.model_copy(update={"attempt": 1 + max(earlier, default=0)})
    return {"experiment": place.model_dump(mode="json")}


def follow_runs(
    call: Call[Any],
    plan: ExperimentPlan,
    show: Callable[[str], None] = lambda line: None,
    is_interrupted: Callable[[], bool] = lambda: False,
    timeout_s: float | None = None,
) -> list[ExperimentRun]:
    """Return when all submitted runs have ended, or the caller is interrupted.

    Raises TimeoutError after `timeout_s`; runs continue.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        runs = read_runs(call, plan)
        line = format_counts([run.status for run in runs])
        show(line)
        if is_interrupted() or all(run.view is None or run.view.stage is Stage.FINISHED for run in runs):
            return runs
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"The experiment {plan.name!r} is not done after {timeout_s:g} s: {line}. It continues.")
        time.sleep(POLL_S)
