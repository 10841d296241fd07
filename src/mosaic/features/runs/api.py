"""Connections to a workspace, and the functions of `import mosaic` that use the current one."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from mosaic.base.algorithm_schema import get_algorithm
from mosaic.base.caller_environment import program_environment
from mosaic.base.handshake import REMOTE_RETRY_S
from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.errors import BadInput, NotAllowed, RunEnded
from mosaic.contracts.folder import Workspace
from mosaic.contracts.names import RETURN_TAG
from mosaic.features.evaluate.api import is_policy_path
from mosaic.features.play.core import ActorRequest, build_match_payload
from mosaic.features.runs.api_run import Run, Runs
from mosaic.trainer.client.connect import ReconnectingClient, read_daemon_address
from mosaic.trainer.client.connect import connect as connect_workspace
from mosaic.trainer.client.remote_trainer import connect_remote, find_remote_trainer
from mosaic.trainer.client.run_lookup import has_policy, resolve_run
from mosaic.trainer.client.trainer_client import submit_once
from mosaic.worker.policies import Policy, load_policy_file

if TYPE_CHECKING:
    from mosaic.contracts.views import DaemonStatus, Verdict
    from mosaic.features.experiments.api import Experiment
    from mosaic.features.experiments.core import ReferenceScores
    from mosaic.features.experiments.core_comparison import ComparisonResult
    from mosaic.features.play.api import DuelResult
    from mosaic.features.runs.api_attached import AttachedRun
    from mosaic.features.sweeps.api import SweepResult

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_HOST_AND_PORT = re.compile(r"[^/\\\s]+:\d+")


class Client:
    """A connection to the daemon of a workspace, with the functions of the module as methods.

    It is opened on first use and opened again if the daemon was restarted. Use it as a context manager, or close it.
    """

    def __init__(self, connection: ReconnectingClient, name: str, workspace: Workspace | None = None) -> None:
        self._connection = connection
        self._name = name
        self._workspace = workspace

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Runs and the daemon continue."""
        self._connection.close()

    def __repr__(self) -> str:
        return f"<Client of {self._name}>"

    @property
    def status(self) -> DaemonStatus:
        """The daemon's process, address, slots and numbers of runs."""
        return self._connection.call(lambda trainer: trainer.get_status())

    # --- submitting

    def train(
        self,
        /,
        algo: str,
        env_id: str,
        *,
        seed: int = 1,
        total_timesteps: int | None = None,
        wait: bool = False,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
        priority: int | None = None,
        max_seconds: float | None = None,
        memory_mb: int | None = None,
        executor: str | None = None,
        cpus: int | None = None,
        gpus: float | None = None,
        gpu: int | None = None,
        keep_checkpoints: int | None = None,
        tensorboard: bool = True,
        **settings: Any,
    ) -> Run:
        """Submit a training run and return it; with `wait=True`, when it has ended.

        `settings` are those of the algorithm, such as `learning_rate`; `mosaic train ALGO --help` lists them. What is
        not given has the algorithm's default. An invalid config raises ConfigRefused, and nothing is started.
        """
        options = {
            "run_name": name,
            "tags": tuple(tags),
            "notes": notes,
            "group": group,
            "priority": priority,
            "max_seconds": max_seconds,
            "memory_mb": memory_mb,
            "executor": executor,
            "cpus": cpus,
            "gpus": gpus,
            "gpu": gpu,
            "keep_checkpoints": keep_checkpoints,
            "tensorboard": tensorboard,
        }
        payload = _train_payload(algo, env_id, seed, total_timesteps, {**settings, **options})
        run = Run(self._connection, submit_once(self._connection.call, payload, program_environment(payload)))
        return run.wait() if wait else run

    def play(
        self,
        env_id: str,
        actor: str = "random",
        opponent: str | None = None,
        *,
        episodes: int = 1,
        seed: int = 1,
        max_steps: int | None = None,
        rate_hz: float | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        actor_options: Mapping[str, Any] | None = None,
        opponent_options: Mapping[str, Any] | None = None,
        record: bool = True,
        wait: bool = False,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
    ) -> Run:
        """Submit a session in which actors act in an environment, and return it; with `wait=True`, when it has ended.

        `actor` is `random`, `policy:RUN`, `script:FILE`, `llm:MODEL`, `bdi:FILE` or that of a plug-in. `opponent` acts
        for the other agents of a game; without one, the actor does. Episode k has the seed `seed` + k.
        """
        if opponent is None and opponent_options:
            raise BadInput("opponent_options: they need an opponent.")
        given = {"max_steps": max_steps, "rate_hz": rate_hz, "env_kwargs": env_kwargs}
        settings = {name: value for name, value in given.items() if value is not None}
        payload = build_match_payload(
            self._connection.trainer(),
            env_id,
            ActorRequest(actor, actor_options or {}),
            None if opponent is None else ActorRequest(opponent, opponent_options or {}),
            {"episodes": episodes, "seed": seed, "record": record, **settings},
            {"run_name": name, "group": group, "tags": tuple(tags)},
        )
        run = self.submit(payload)
        return run.wait() if wait else run

    def duel(self, config: str | os.PathLike[str] | Mapping[str, Any], *, progress: bool = False) -> DuelResult:
        """Compare actors in an environment under the same seeds, and return the result when all have played.

        `config` is a YAML file as `mosaic duel` reads it, or the same as a mapping: `env`, `actors`, `seeds` and so on.
        What is wrong with it raises ConfigRefused before anything starts. Ctrl-C cancels the sessions.
        """
        from mosaic.base.progress_line import ProgressLine
        from mosaic.features.play.api import parse_duel, plan_duel, read_duel_file, run_duel

        parsed = parse_duel(config) if isinstance(config, Mapping) else read_duel_file(Path(config))
        trainer = self._connection.trainer()
        plan = plan_duel(trainer, parsed)
        if not progress:
            return run_duel(trainer, self._connection.call, plan)
        with closing(ProgressLine()) as show:
            return run_duel(trainer, self._connection.call, plan, show)

    def experiment(self, config: str | os.PathLike[str] | Mapping[str, Any]) -> Experiment:
        """Return the experiment that a YAML file or a mapping describes: `name`, `algorithms`, `environments`, `seeds`.

        Nothing is submitted: `run()` does that, and submits only what is missing. What is wrong with the config raises
        ConfigRefused.
        """
        from mosaic.features.experiments.api import Experiment, read_experiment
        from mosaic.features.experiments.core import plan_experiment

        return Experiment(self._connection, plan_experiment(read_experiment(config)))

    def sweep(self, config: str | os.PathLike[str] | Mapping[str, Any]) -> SweepResult:
        """Run a sweep to its end, or continue one, and return its trials. Requires Optuna.

        `config` is a YAML file as `mosaic sweep` reads it, or the same as a mapping. After Ctrl-C, the runs of running
        trials continue, and the same call takes them over.
        """
        from mosaic.features.sweeps.api import SweepResult
        from mosaic.features.sweeps.core import read_sweep
        from mosaic.features.sweeps.core_loop import SweepLoop, check_sweep, open_study

        if self._workspace is None:
            raise NotAllowed(f"sweep() needs a workspace on this machine; {self._name} is a daemon elsewhere.")
        data = read_sweep(config)
        check_sweep(self._connection.call, self._workspace, data)
        with open_study(self._workspace, data) as study:
            loop = SweepLoop(self._connection.call, study)
            loop.run()
            if loop.is_cancelled:
                raise RunEnded(f"Another process has cancelled the sweep {study.plan.config.name!r}. Call this again.")
            return SweepResult(study.plan.config.name, tuple(study.rows()))

    def submit(self, payload: Mapping[str, Any]) -> Run:
        """Submit a whole config, as `mosaic submit` reads it from a file."""
        return Run(self._connection, submit_once(self._connection.call, dict(payload)))

    def check(
        self, /, algo: str, env_id: str, *, seed: int = 1, total_timesteps: int | None = None, **settings: Any
    ) -> Verdict:
        """Return what the worker would run; a refusal is raised as by `train`. Nothing is started."""
        payload = _train_payload(algo, env_id, seed, total_timesteps, settings)
        return self._connection.call(lambda trainer: trainer.check(payload, program_environment(payload)))

    def start_run(
        self,
        name: str | None = None,
        config: Any = None,
        *,
        group: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
        keep_checkpoints: int = 3,
        tensorboard: bool = True,
    ) -> AttachedRun:
        """Start a run that this process produces, such as a training loop in a notebook.

        `config` are the settings that are shown and compared, as a mapping, a dataclass or an argparse.Namespace;
        `env_id`, `seed` and `total_timesteps` among them are those of the run. The run starts at once, whatever waits
        in the queue. Use it as a context manager; without, it ends with the program.
        """
        from mosaic.features.runs.api_attached import start_attached_run

        if self._workspace is None:
            raise NotAllowed(f"start_run() needs a workspace on this machine; {self._name} is a daemon elsewhere.")
        options = {"run_name": name, "tags": tuple(tags), "notes": notes, "group": group}
        return start_attached_run(self._connection, config or {}, options, keep_checkpoints, tensorboard)

    # --- finding

    def get_run(self, run: str = "last") -> Run:
        """Return a run by its id, a unique beginning or end of it, its name if no other run has that, or `last` for the
        newest that is not archived."""
        return Run(self._connection, self._connection.call(lambda trainer: trainer.get_run(run)))

    def runs(
        self,
        *,
        status: str | Sequence[str] = (),
        group: str = "",
        algo: str = "",
        env_id: str = "",
        tags: str | Sequence[str] = (),
        include_archived: bool = False,
        limit: int = 0,
    ) -> Runs:
        """Return the runs that match all filters, newest first. `status` takes stages and outcomes; 0 is no limit."""
        views = self._connection.call(
            lambda trainer: trainer.runs(
                _as_sequence(status), _as_sequence(tags), algo, env_id, group, include_archived, limit
            )
        )
        return Runs([Run(self._connection, view) for view in views])

    def compare(
        self,
        *runs: str | Run,
        by: str | None = None,
        tag: str = RETURN_TAG,
        last: int | None = None,
        env_id: str = "",
        reference_scores: ReferenceScores | None = None,
        score: str = "final",
        common_step: bool = False,
    ) -> ComparisonResult:
        """Compare runs or groups of them, as `mosaic compare` does.

        `by` is the setting to group by, or `run` to keep runs apart. The score of a run is the mean of the `last`
        values of `tag` (100 by default), or with `score="area"` the mean of its curve over all steps. `env_id` leaves
        only the runs on that environment. Scores over several are normalized on each from the worst to the best of
        these runs, or by `reference_scores`. With `common_step`, points after the largest step that all runs of an
        environment have reached are left out.
        """
        from mosaic.features.experiments.core import read_ranges
        from mosaic.features.experiments.core_comparison import compare_runs

        if not runs:
            raise BadInput("compare() needs at least one run or group, such as mosaic.compare('groupA', 'groupB').")
        names = [run.id if isinstance(run, Run) else run for run in runs]
        reference = read_ranges(reference_scores)
        return self._connection.call(
            lambda trainer: compare_runs(trainer, names, by, tag, last, env_id, reference, score, common_step)
        )

    def load_policy(
        self,
        policy: str | os.PathLike[str] | Run,
        checkpoint: str | int = "last",
        *,
        algo: str | None = None,
        env_id: str | None = None,
    ) -> Policy:
        """Load a policy into this process, from a run, its folder, a checkpoint or a `.cleanrl_model` file.

        `checkpoint` chooses among those of a run: `last`, `best` or a step. `algo` and `env_id` are for files that do
        not contain them. Nothing is unpickled.
        """
        if isinstance(policy, Run):
            return policy.load_policy(checkpoint)
        if isinstance(policy, str) and not is_policy_path(policy) and not Path(policy).is_dir():
            view = self._connection.call(lambda trainer: resolve_run(trainer, policy, has_policy))
            return Run(self._connection, view).load_policy(checkpoint)
        return load_policy_file(policy, algo, env_id)


def _as_sequence(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def _train_payload(
    algo: str, env_id: str, seed: int, total_timesteps: int | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    algorithm = get_algorithm(algo)
    given = {"env_id": env_id, "seed": seed, **settings}
    if total_timesteps is not None:
        given["total_timesteps"] = total_timesteps
    defaults = {field.name: field.default for field in algorithm.fields}
    payload = build_train_payload(algorithm.worker.id, algorithm.name, given, defaults)
    payload["metadata"]["worker"]["config"].update(algorithm.location)
    return payload


def connect(
    workspace: str | os.PathLike[str] | None = None, *, trainer: str | None = None, token: str | None = None
) -> Client:
    """Connect to the daemon of a workspace, and start one if none is running.

    `workspace` is its folder (default: $MOSAIC_VAR or ./var). `trainer` is a daemon on another machine instead: the
    name that `mosaic trainer add` gave it, or `HOST:PORT`, which needs its token (default: $MOSAIC_TOKEN).
    """
    if isinstance(workspace, str) and _HOST_AND_PORT.fullmatch(workspace):
        trainer = workspace
    if trainer is not None:
        remote = find_remote_trainer(trainer, token=token or "")
        connection = ReconnectingClient(partial(connect_remote, remote), lambda: None, REMOTE_RETRY_S)
        client = Client(connection, remote.option)
    else:
        client = _workspace_client(Workspace.resolve(workspace))
    client._connection.trainer()
    return client


def _workspace_client(workspace: Workspace) -> Client:
    connection = ReconnectingClient(partial(connect_workspace, workspace), partial(read_daemon_address, workspace))
    return Client(connection, str(workspace.root), workspace)


_default_clients: dict[Path, Client] = {}


def default_client() -> Client:
    """Return the client of the current workspace: $MOSAIC_VAR or ./var."""
    workspace = Workspace.resolve()
    return _default_clients.setdefault(workspace.root, _workspace_client(workspace))


def _with_default_client(
    method: Callable[Concatenate[Client, Parameters], Result],
) -> Callable[Parameters, Result]:
    """Return a function that calls a method of the current workspace's client."""

    @wraps(method)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return method(default_client(), *args, **kwargs)

    signature = inspect.signature(method)
    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return call


train = _with_default_client(Client.train)
submit = _with_default_client(Client.submit)
start_run = _with_default_client(Client.start_run)
check = _with_default_client(Client.check)
get_run = _with_default_client(Client.get_run)
runs = _with_default_client(Client.runs)
compare = _with_default_client(Client.compare)
play = _with_default_client(Client.play)
duel = _with_default_client(Client.duel)
experiment = _with_default_client(Client.experiment)
sweep = _with_default_client(Client.sweep)
load_policy = _with_default_client(Client.load_policy)
