"""Runs one training from its config to its last file."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat

from cleanrl_worker.learners import devices
from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from cleanrl_worker.shell.worker_config import CORE_SETTINGS, WORKER_NAME, WorkerRequest, algorithm_config
from mosaic.base.files import write_json
from mosaic.base.secret_store import redact_secrets
from mosaic.contracts.arguments import parse_wrapper
from mosaic.contracts.errors import problems_of, refuse_key
from mosaic.contracts.folder import TENSORBOARD_VARIABLE, RunFolder, to_file_name
from mosaic.worker.checkpoints import Checkpoint, last_good_checkpoint
from mosaic.worker.envs import make
from mosaic.worker.envs.wrappers import WrappedEnv, try_wrapped
from mosaic.worker.run import Run
from mosaic.worker.worker_run import open_training, require_checkpoint

CONSOLE_INTERVAL_S = 1.0


class ConsoleRun(Run):
    """Prints its progress in CleanRL's format at fixed intervals, because a line per episode costs time."""

    _printed_at = 0.0
    _episode_step = _printed_step = -1
    """When the last episode ended, and the one that was printed."""

    def episode(self, *, env: int, step: int, episodic_return: SupportsFloat, length: int) -> None:
        super().episode(env=env, step=step, episodic_return=episodic_return, length=length)
        self._episode_step = step

    def update(self, global_step: int) -> None:
        super().update(global_step)
        if self._episode_step != self._printed_step and time.monotonic() - self._printed_at >= CONSOLE_INTERVAL_S:
            self.print_progress()

    def print_progress(self) -> None:
        if self._episode_step != self._printed_step:
            self._printed_at = time.monotonic()
            self._printed_step = self._episode_step
            # The reader of stdout may be gone; that is no reason to stop.
            try:
                print(f"global_step={self._episode_step}, episodic_return={self._recent_returns[-1]:g}", flush=True)
            except OSError:
                self._printed_at = float("inf")


def complete_request(request: WorkerRequest, folder: RunFolder) -> WorkerRequest:
    """Complete the request of a worker that was started by hand, without a run folder.

    As with CleanRL's scripts, event files go to `runs/<run name>` unless CLEANRL_TENSORBOARD_DIR says otherwise.
    """
    request.payload.refuse_unused_evaluation(request.written_paths)
    tensorboard = request.artifacts.tensorboard
    if request.is_user_script or request.is_evaluation or tensorboard.directory or os.environ.get(TENSORBOARD_VARIABLE):
        return request
    directory = (folder.models / _cleanrl_run_name(folder, algorithm_config(request))).relative_to(folder.path)
    artifacts = request.artifacts.model_copy(
        update={"tensorboard": tensorboard.model_copy(update={"directory": str(directory)})}
    )
    return replace(request, payload=request.payload.model_copy(update={"artifacts": artifacts}))


def write_config(request: WorkerRequest, folder: RunFolder) -> None:
    """Write config.json of a run that was started by hand: by it the daemon recognizes the folder as a run."""
    if not folder.config.exists():
        config = {**request.config.model_dump(mode="json", exclude_none=True), "run_id": folder.run_id}
        if not request.is_user_script and not request.is_evaluation:  # with what it leaves to the algorithm's defaults
            chosen = algorithm_config(request)
            config |= {key: getattr(chosen, key) for key in CORE_SETTINGS}
        folder.path.mkdir(parents=True, exist_ok=True)
        payload = request.payload.with_worker(id=WORKER_NAME, config=config).with_policy_path(folder.to_portable)
        write_json(folder.config, redact_secrets(payload.to_json()))


@contextlib.contextmanager
def _record_training(request: WorkerRequest, run: Run, config: Any, resumed: Checkpoint | None) -> Iterator[None]:
    """Store videos and episodes, if requested."""
    if not request.artifacts.video.capture and not request.artifacts.record_episodes:
        yield
        return
    from mosaic.worker.envs.factory import find_family
    from mosaic.worker.recorders import record_training
    from mosaic.worker.recording import RecordingHeader
    from mosaic.worker.simulation import library_versions

    entry = ALGORITHMS[request.algo]
    header = RecordingHeader(
        env_id=config.env_id,
        env_kwargs=config.env_settings,
        preprocessing="team" if entry.has_several_agents else "atari_training" if entry.is_for_atari else "none",
        versions=library_versions(find_family(config.env_id)),
    )
    with record_training(request.payload, run, header, resumed):
        yield


def _make_checked_env(algo: str, module: Any, config: Any) -> Any:
    """Make the environment of a training; raise if it cannot be made, or not with these settings."""
    settings, spec = config.env_settings, ALGORITHMS[algo]
    _check_wrappers(algo, hasattr(module, "make_env"), config)
    if settings and spec.runs_in_envpool:
        raise refuse_key("env_kwargs", f"the games of {algo} are envpool's, which take no settings. Leave it out.")
    with problems_of("env_id"):
        if settings and spec.is_for_atari and not hasattr(module, "make_env"):
            _env_maker(algo)(config.env_id, **settings).close()
        env = getattr(module, "make_env", make)(config.env_id, **settings)
    if isinstance(env, WrappedEnv):
        try_wrapped(env)
        if env.has_statistics and (config.env_processes or 1) > 1:
            raise refuse_key("env_processes", "normalizing wrappers need all environments in one process. Set it to 1.")
    return env


def _check_wrappers(algo: str, has_own_envs: bool, config: Any) -> None:
    """Raise if the algorithm cannot use these wrappers."""
    spec = ALGORITHMS[algo]
    if config.wrappers and (spec.is_for_atari or has_own_envs):
        raise refuse_key("wrappers", f"the environments of {algo} have their own preprocessing. Leave it out.")
    if spec.normalizes and any(parse_wrapper(text).name.startswith("normalize-") for text in config.wrappers or ()):
        raise refuse_key("wrappers", f"{algo} normalizes observations and rewards itself. Leave these out.")


def _env_maker(algo: str) -> Callable[..., Any]:
    """Return the function that makes the environments of a training."""
    if not ALGORITHMS[algo].is_for_atari:
        return make
    from cleanrl_worker.environments.atari import make_training_env

    return make_training_env


def check_training(request: WorkerRequest) -> tuple[Any, dict[str, Any], Any]:
    """Return the algorithm's config, its summary of the environment, and the environment; raise if they do not fit."""
    module = load_algorithm(request.algo)
    config = algorithm_config(request)
    devices.require_torch(request.algo, config)
    env = _make_checked_env(request.algo, module, config)
    try:
        facts: dict[str, Any] = module.check(config, env)
        if ALGORITHMS[request.algo].needs_teacher:
            facts |= module.check_teacher(config)
        if request.artifacts.record_episodes and ALGORITHMS[request.algo].runs_in_envpool:
            raise refuse_key(
                "artifacts.record_episodes",
                f"episodes of {request.algo} cannot be simulated again, because envpool's games cannot be restored.",
            )
    finally:
        env.close()
    return config, facts, env


Job = Callable[[RunFolder, bool], None]
"""Runs a request in a run folder; the flag says whether to resume from its last good checkpoint."""


def build_job(request: WorkerRequest) -> Job:
    """Check everything as a dry run does, so that a refusal comes before a folder is touched."""
    if request.is_user_script:
        from cleanrl_worker.shell.script_job import build_script_job

        plan = build_script_job(request)
        return lambda folder, _: plan.run(folder)
    if request.is_evaluation:
        from cleanrl_worker.evaluation.evaluate import run_evaluation
        from cleanrl_worker.evaluation.loading import load_for_evaluation

        match = load_for_evaluation(request)
        return lambda folder, _: run_evaluation(request, match, folder)
    config, _, _ = check_training(request)
    return lambda folder, is_resume: train(request, config, folder, is_resume)


def train(request: WorkerRequest, config: Any, folder: RunFolder, is_resume: bool) -> None:
    """Train until done or stopped."""
    module = load_algorithm(request.algo)
    resumed = require_checkpoint(folder) if is_resume else None
    config = _choose_env_processes(request, config, resumed)
    with open_training(ConsoleRun, WORKER_NAME, request, folder, config, resumed) as run:
        with _record_training(request, run, config, resumed):
            module.train(config, run, resumed)
        run.print_progress()
        if request.saves_model:
            _save_model(run, request.algo, config)
        if request.payload.evaluates_model and not run.stop_requested:
            from cleanrl_worker.evaluation.evaluate import evaluate_after_training

            evaluate_after_training(request, run, logs_points=not config.eval_every)
        is_done = run.global_step >= config.total_timesteps or run.end_reason is not None or not run.stop_requested
        run.finish("succeeded" if is_done else "stopped", run.end_reason if is_done else run.stop_note)


def _choose_env_processes(request: WorkerRequest, config: Any, resumed: Checkpoint | None) -> Any:
    """Return the config with `env_processes`: as given, else that of the resumed run, else by a measurement."""
    if config.env_processes is not None:
        return config
    from cleanrl_worker.environments import parallel

    spec, cpus = ALGORITHMS[request.algo], request.payload.resources.cpus
    chosen = None if resumed is None else resumed.facts.get("config", {}).get("env_processes")
    if chosen is not None:
        chosen = parallel.limit_processes(chosen)
    else:
        make_env = functools.partial(_env_maker(request.algo), config.env_id, **config.env_settings)
        # The daemon fills in the recommended number of threads, which is not a limit that was set for this run.
        chosen = parallel.choose_processes(make_env, config.num_envs, None if cpus == spec.threads > 1 else cpus)
    return config.model_copy(update={"env_processes": chosen})


def _save_model(run: Run, algo: str, config: Any) -> None:
    """Write the final checkpoint as CleanRL's model file."""
    checkpoint = last_good_checkpoint(run.folder, with_parts=False)
    if checkpoint is None:
        run.warn("No checkpoint was saved, so no .cleanrl_model was written.", "no_model")
        return
    path = run.folder.model(_cleanrl_run_name(run.folder, config), algo)
    if run.write_result(lambda: write_model(checkpoint, path), f"The model {path.name}", "model_failed"):
        run.artifact("model", str(path.relative_to(run.folder.path)))


def write_model(checkpoint: Checkpoint, path: Path) -> Path:
    from cleanrl_worker.evaluation.saved_policies import format_metadata
    from mosaic.worker.torch_files import save_state_dict

    algo = checkpoint.facts["algorithm"]
    with devices.names_missing_torch(f"The model of {algo}"):
        state = load_algorithm(algo).state_dict_of(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_state_dict(path, state, format_metadata(checkpoint))
    return path


def _cleanrl_run_name(folder: RunFolder, config: Any) -> str:
    """Return CleanRL's name of a run; a resumed run keeps its name."""
    stem = to_file_name(f"{config.env_id}__{config.exp_name}__{config.seed}__")
    earlier = sorted(path.name for path in folder.models.glob("*") if path.name.startswith(stem))
    return earlier[-1] if earlier else f"{stem}{int(time.time())}"
