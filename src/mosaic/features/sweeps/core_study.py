"""Optuna's study of a sweep, by ask and tell, in a journal file. Nothing else imports Optuna.

An attribute of a trial states what is decided before it is done, so that a process that is killed in between leaves
enough to finish it: `pruned_at` before runs are cancelled, `uncounted` before a trial is given up.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mosaic.contracts.errors import MissingExtra
from mosaic.features.sweeps.core import MIN_TRIALS_FOR_IMPORTANCE, Dimension, SweepPlan, TrialRow, TrialStatus
from mosaic.features.sweeps.core_folder import SweepFolder

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    from optuna.trial import TrialState as OptunaState
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "optuna":
        raise
    raise MissingExtra("Sweeps need Optuna: pip install 'mosaic-rl[sweep]'") from None

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

STARTUP_TRIALS = 10
"""Random trials before TPE's first own proposal."""
TARGET_QUANTILE = 0.25
"""The importance is that of reaching the best quarter of the completed trials."""
CANCELLED, INTERRUPTED = "cancelled", "interrupted"


class _NoLock(JournalFileOpenLock):
    """The folder's lock keeps other writers away; Optuna's own would survive a killed process for 30 seconds."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None: ...


class Study:
    """Writing needs the folder's lock."""

    def __init__(self, folder: SweepFolder, plan: SweepPlan) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.plan = plan
        self.folder = folder
        self._distributions = {dimension.name: _distribution(dimension) for dimension in plan.dimensions}
        self._dimensions = {dimension.name: dimension for dimension in plan.dimensions}
        storage = JournalStorage(JournalFileBackend(str(folder.journal), _NoLock(str(folder.journal))))
        self._study = optuna.create_study(
            study_name=folder.name, storage=storage, direction="maximize", load_if_exists=True,
            pruner=_build_pruner(plan),
        )  # fmt: skip
        # A resumed sampler must not draw the same numbers again: its random state is not stored.
        self._study.sampler = _build_sampler(plan, plan.config.seed + len(self._frozen()))

    @property
    def id(self) -> str:
        """Differs from that of an earlier study with the same name; empty before `prepare`."""
        return str(self._study.user_attrs.get("study_id", ""))

    def prepare(self, study_id: str) -> None:
        """Give a new study its id, and the algorithm's defaults as its first trial."""
        if "study_id" not in self._study.user_attrs:
            self._study.set_user_attr("study_id", study_id)
        defaults = None if self.plan.config.sampler == "grid" else self.plan.default_params
        if defaults is not None and not self._frozen():
            self._study.enqueue_trial(self._encode(defaults))

    # --- trials

    def rows(self) -> list[TrialRow]:
        return [self._row(trial) for trial in self._frozen()]

    def is_exhausted(self) -> bool:
        """Return whether no further trial is to be started."""
        rows = self.rows()
        if any(row.status is TrialStatus.WAITING for row in rows):
            return False
        return sum(row.status is not TrialStatus.CANCELLED for row in rows) >= self.plan.trial_count

    def ask(self) -> TrialRow:
        """Start a trial."""
        rows = self.rows()
        if self.plan.config.sampler == "grid" and not any(row.status is TrialStatus.WAITING for row in rows):
            taken = [row.params for row in rows if row.status is not TrialStatus.CANCELLED]
            cell = next(cell for cell in self.plan.grid() if cell not in taken)
            self._study.enqueue_trial(self._encode(cell))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            number = self._study.ask(self._distributions).number
        return self.row(number)

    def row(self, number: int) -> TrialRow:
        return self._row(self._frozen()[number])

    def report(self, number: int, value: float, at: int) -> bool:
        """Store a report and return whether the trial is to be pruned; a report that is stored already is kept."""
        trial = self._trial(number)
        if at not in self._frozen()[number].intermediate_values:
            trial.report(value, at)
        is_pruned = self.plan.config.pruning.method != "none" and trial.should_prune()
        if is_pruned:
            trial.set_user_attr("pruned_at", at)
        return is_pruned

    def tell_done(self, number: int, score: float, seed_scores: Sequence[float]) -> None:
        self._trial(number).set_user_attr("seed_scores", list(seed_scores))
        self._study.tell(number, score)

    def tell_pruned(self, number: int) -> None:
        self._study.tell(number, state=OptunaState.PRUNED)

    def tell_failed(self, number: int, problem: str) -> None:
        self._trial(number).set_user_attr("problem", problem)
        self._study.tell(number, state=OptunaState.FAIL)

    def tell_cancelled(self, number: int, reason: str = CANCELLED) -> None:
        """A trial that was given up does not count: another one takes its place."""
        self._trial(number).set_user_attr("uncounted", reason)
        self._study.tell(number, state=OptunaState.FAIL)

    # --- analysis

    def importances(self) -> dict[str, float]:
        """By setting, the most important first; empty where there are too few completed trials."""
        done = [row for row in self.rows() if row.status is TrialStatus.DONE]
        searched = [name for name in self._distributions if len({json.dumps(row.params[name]) for row in done}) > 1]
        if len(done) < MIN_TRIALS_FOR_IMPORTANCE or len(searched) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=TARGET_QUANTILE)
            found = optuna.importance.get_param_importances(self._study, evaluator=evaluator, params=searched)
        return {name: float(value) for name, value in found.items()}

    # --- Optuna's own

    def _frozen(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _trial(self, number: int) -> optuna.trial.Trial:
        # As `ask` builds it; there is no public way to a trial of an earlier process.
        return optuna.trial.Trial(self._study, self._frozen()[number]._trial_id)

    def _row(self, trial: FrozenTrial) -> TrialRow:
        fixed = trial.system_attrs.get("fixed_params", {}) if trial.state is OptunaState.WAITING else {}
        params = {**fixed, **trial.params}
        return TrialRow(
            number=trial.number,
            status=_status(trial),
            params={name: self._decode(name, value) for name, value in params.items() if name in self._dimensions},
            score=trial.value if trial.state is OptunaState.COMPLETE else None,
            reports=dict(trial.intermediate_values),
            seed_scores=tuple(trial.user_attrs.get("seed_scores", ())),
            problem=str(trial.user_attrs.get("problem") or trial.user_attrs.get("uncounted") or ""),
            pruned_at=trial.user_attrs.get("pruned_at"),
            is_complete=set(params) >= set(self._distributions),
        )

    def _encode(self, params: dict[str, Any]) -> dict[str, Any]:
        return {name: _to_optuna(self._dimensions[name], value) for name, value in params.items()}

    def _decode(self, name: str, value: Any) -> Any:
        dimension = self._dimensions[name]
        if not dimension.options:
            return value
        return dimension.options[value] if dimension.is_ordered else json.loads(value)


def _status(trial: FrozenTrial) -> TrialStatus:
    if trial.state is OptunaState.FAIL and "uncounted" in trial.user_attrs:
        return TrialStatus.CANCELLED
    return {
        OptunaState.WAITING: TrialStatus.WAITING,
        OptunaState.RUNNING: TrialStatus.RUNNING,
        OptunaState.COMPLETE: TrialStatus.DONE,
        OptunaState.PRUNED: TrialStatus.PRUNED,
        OptunaState.FAIL: TrialStatus.FAILED,
    }[trial.state]


def _to_optuna(dimension: Dimension, value: Any) -> Any:
    if not dimension.options:
        return value
    return dimension.options.index(value) if dimension.is_ordered else json.dumps(value)


def _distribution(dimension: Dimension) -> BaseDistribution:
    """Values in order are numbered, so that a sampler knows which are near; choices are JSON, as they may be lists."""
    if dimension.options and dimension.is_ordered:
        return optuna.distributions.IntDistribution(0, len(dimension.options) - 1)
    if dimension.options:
        return optuna.distributions.CategoricalDistribution([json.dumps(one) for one in dimension.options])
    if dimension.is_int:
        return optuna.distributions.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.is_log)
    return optuna.distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.is_log)


def _build_sampler(plan: SweepPlan, seed: int) -> BaseSampler:
    if plan.config.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    return optuna.samplers.RandomSampler(seed=seed)  # a grid's cells are enqueued


def _build_pruner(plan: SweepPlan) -> BasePruner:
    pruning = plan.config.pruning
    if pruning.method == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=pruning.min_reports, reduction_factor=pruning.reduction_factor
        )
    if pruning.method == "median":
        return optuna.pruners.MedianPruner(
            n_startup_trials=pruning.startup_trials, n_warmup_steps=pruning.min_reports - 1
        )
    return optuna.pruners.NopPruner()
