"""Loads a saved policy with its environment; a combination that does not fit is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker.evaluation.saved_policies import SavedPolicy, find_policy, flatten_weights
from cleanrl_worker.learners.devices import names_missing_torch
from cleanrl_worker.registry import ALGORITHMS, load_algorithm, module_name
from cleanrl_worker.shell.worker_config import DEFAULT_SEED, WorkerRequest
from mosaic.base.worker_registry import ActingPolicy
from mosaic.contracts.errors import BadInput, FieldProblem, MosaicError, problems_of, refuse_key
from mosaic.worker.checkpoints import Checkpoint
from mosaic.worker.envs import make
from mosaic.worker.envs.factory import describe_env, find_family
from mosaic.worker.envs.spaces import find_choices, make_flattener
from mosaic.worker.envs.wrappers import WrappedEnv
from mosaic.worker.evaluation import (
    BATCH_SIZE,
    EvaluablePolicy,
    RecurrentPolicy,
    make_action_clipper,
    make_array_converter,
)
from mosaic.worker.evaluation_batches import EvaluatedPolicy, batch_size, first_evaluation_seed
from mosaic.worker.recording import Preprocessing, RecordingHeader
from mosaic.worker.sb3_policy import SB3, SB3_SUFFIX, Sb3Policy
from mosaic.worker.simulation import library_versions


@dataclass(frozen=True)
class LoadedPolicy(EvaluatedPolicy):
    saved_policy: SavedPolicy
    environment_summary: dict[str, Any]
    """Its metadata for the summary."""


def env_maker(algo: str) -> Callable[..., Any]:
    """Return what makes an environment for evaluation from its id, with the wrappers used in training."""
    module = load_algorithm(algo)
    if ALGORITHMS[algo].is_for_atari:
        from cleanrl_worker.environments.atari import make_evaluation_env

        return getattr(module, "make_env", make_evaluation_env)
    return getattr(module, "make_env", make)


def policy_env_maker(algo: str, path: Path, arrays: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the same for a policy: normalizing wrappers keep the statistics in the arrays of its checkpoint."""
    make_env = env_maker(algo)

    def make_with_statistics(env_id: str, **options: Any) -> Any:
        env = make_env(env_id, **options)
        if isinstance(env, WrappedEnv):
            try:
                env.restore_statistics(arrays)
            except KeyError as error:
                raise BadInput(
                    f"{path} lacks {error.args[0]!r}: without the statistics of its wrappers the "
                    "policy would not act as it was trained. Choose a checkpoint of its run."
                ) from None
            env.set_frozen(True)
        return env

    return make_with_statistics


def load_for_evaluation(request: WorkerRequest) -> LoadedPolicy:
    """Load the policy; raise, naming both sides, if it does not fit the request."""
    _check_settings(request)
    assert request.evaluation.policy_path is not None
    config = request.config
    loaded, env = _load(request.evaluation.policy_path, config.algo, config.env_id, request.evaluation.seed)
    env.close()
    if isinstance(loaded.policy, Sb3Policy) and request.evaluation.stochastic:
        raise BadInput(f"{loaded.path}: a policy of {SB3} acts deterministically here. Leave out --stochastic.")
    if loaded.header is None and request.artifacts.record_episodes:
        raise refuse_key(
            "artifacts.record_episodes",
            f"episodes of {loaded.algo} cannot be simulated again, because envpool's games cannot be restored.",
        )
    return loaded


def _load(path: str, algo: str | None, env_id: str | None, first_seed: int | None) -> tuple[LoadedPolicy, Any]:
    """Return the policy with an environment that it fits; names that are not given come from the file."""
    if path.endswith(SB3_SUFFIX):
        return _load_sb3(Path(path).expanduser().absolute(), env_id, first_seed)
    saved = find_policy(path)
    if saved.checkpoint is not None and algo not in (None, saved.algo):
        message = f"The checkpoint {saved.path} is of {saved.algo!r}, not of {algo!r}."
        raise BadInput(message, [FieldProblem("algo", message)])
    algo, env_id = algo or saved.algo, env_id or saved.env_id
    for name, value, field, hint in (
        ("algo", algo, "algorithm", "--algo, or for an actor its option, such as algo=ppo"),
        ("env_id", env_id, "environment", "--env-id"),
    ):
        if not value:
            message = f"{saved.path} does not state its {field}. Give it: {hint}"
            raise BadInput(message, [FieldProblem(name, message)])
    assert algo is not None
    assert env_id is not None
    seed = DEFAULT_SEED if saved.seed is None else int(saved.seed)
    make_env = policy_env_maker(algo, saved.path, saved.arrays)
    wrappers = {key: value for key, value in saved.env_settings.items() if key == "wrappers"}
    settings = saved.env_settings if env_id == saved.env_id else wrappers
    with problems_of("env_id"):
        env = make_env(env_id, **settings)
    try:
        if env_id != saved.env_id and saved.env_id is not None:
            with problems_of("env_id"):
                _check_spaces(saved, env_id, env, make_env)
        with names_missing_torch(f"The policy {saved.path} of {algo}"):
            policy = build_policy(saved, algo, env_id, env)
            try_one_action(saved, env_id, env, policy)
    except BaseException:
        env.close()
        raise
    first_seed = first_evaluation_seed(seed) if first_seed is None else first_seed
    loaded = LoadedPolicy(
        path=saved.path,
        step=saved.step,
        algo=algo,
        env_id=env_id,
        first_seed=first_seed,
        policy=policy,
        make_env=partial(make_env, env_id, **settings),
        header=recording_header(algo, env_id, settings),
        saved_policy=saved,
        environment_summary=describe_env(env),
    )
    return loaded, env


def _load_sb3(path: Path, env_id: str | None, first_seed: int | None) -> tuple[LoadedPolicy, Any]:
    """Load the zip of Stable-Baselines3, which does not state its environment."""
    if not env_id:
        message = f"{path} does not state its environment. Give it: --env-id"
        raise BadInput(message, [FieldProblem("env_id", message)])
    with problems_of("env_id"):
        env = make(env_id)
    loaded = LoadedPolicy(
        path=path,
        step=None,
        algo=SB3,
        env_id=env_id,
        first_seed=first_evaluation_seed(DEFAULT_SEED) if first_seed is None else first_seed,
        policy=Sb3Policy(path, env.observation_space, env.action_space),
        make_env=partial(make, env_id),
        header=RecordingHeader(env_id=env_id, versions=library_versions(find_family(env_id))),
        saved_policy=SavedPolicy(path),
        environment_summary=describe_env(env),
    )
    return loaded, env


def recording_header(algo: str, env_id: str, settings: dict[str, Any]) -> RecordingHeader | None:
    if ALGORITHMS[algo].runs_in_envpool:
        return None
    is_atari = ALGORITHMS[algo].is_for_atari
    preprocessing: Preprocessing = "team" if is_team(algo) else "atari_evaluation" if is_atari else "none"
    versions = library_versions(find_family(env_id))
    return RecordingHeader(env_id=env_id, env_kwargs=settings, preprocessing=preprocessing, versions=versions)


def load_acting_policy(path: Path, algo: str | None = None, env_id: str | None = None) -> ActingPolicy:
    """Load a policy for a program that calls it itself, observation by observation."""
    loaded, env = _load(str(path), algo, env_id, None)
    observations, actions = env.observation_space, env.action_space
    env.close()
    policy, clip = loaded.policy, make_action_clipper(actions)
    is_recurrent = isinstance(policy, RecurrentPolicy)

    def act(rows: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        if isinstance(policy, RecurrentPolicy) and not deterministic:
            return clip(policy.sample(rows, [rng] * len(rows)))
        return clip(policy.act(rows, deterministic, rng))

    acting = ActingPolicy(
        path=loaded.path,
        algo=loaded.algo,
        env_id=loaded.env_id,
        step=loaded.step,
        observation_shape=observations.shape,
        flatten=getattr(policy, "to_array", None) or make_array_converter(observations),
        act=act,
        make_env=loaded.make_env,
        rows=BATCH_SIZE if is_recurrent else None,
        reset_row=policy.reset_state if isinstance(policy, RecurrentPolicy) else None,
    )
    return (
        replace(acting, for_agent=partial(_for_agent, acting, policy, env)) if hasattr(policy, "for_agent") else acting
    )


def is_team(algo: str) -> bool:
    return ALGORITHMS[algo].has_several_agents


def _for_agent(acting: ActingPolicy, policy: Any, team: Any, agent: str) -> ActingPolicy:
    """Return the part of a team's policy that acts for one agent."""
    act = policy.for_agent(agent).act
    space = team.observation_spaces[team.agents.index(agent)]
    flatten = make_flattener(space) or np.asarray
    return replace(acting, observation_shape=space.shape, flatten=flatten, act=act, for_agent=None)


def _check_settings(request: WorkerRequest) -> None:
    if request.settings:
        path = next(iter(request.setting_paths.values()))
        raise refuse_key(path, "an evaluation takes its settings from the checkpoint. Leave it out.")


def build_policy(saved: SavedPolicy, algo: str, env_id: str, env: Any) -> EvaluablePolicy:
    checkpoint = saved.checkpoint or checkpoint_from_weights(saved, algo, env_id, env)
    try:
        policy: EvaluablePolicy = load_algorithm(algo).load_policy(checkpoint)
        return policy
    except KeyError as error:
        raise BadInput(
            f"{_policy_label(saved)} lacks {error.args[0]!r}; without it the policy would not act as it was "
            "trained. Choose another checkpoint."
        ) from error
    except (ValueError, IndexError, TypeError) as error:
        raise BadInput(f"The weights of {saved.path} do not fit {algo} on {env_id!r} ({error}).") from error


def checkpoint_from_weights(saved: SavedPolicy, algo: str, env_id: str, env: Any) -> Checkpoint:
    """Complete the weights of a model file to a checkpoint, by what the environment and the settings determine."""
    from cleanrl_worker.algorithms.base import ObservationEncoder, find_image
    from cleanrl_worker.learners.architecture import Architecture

    module, spec = load_algorithm(algo), ALGORITHMS[algo]
    module.check(module.Config(env_id=env_id), env)
    try:
        weights = flatten_weights(saved.weights, spec.model_parts)
    except MosaicError:
        raise BadInput(f"{saved.path} does not contain a state dict of {algo}. Choose another file.") from None
    stated = saved.stated if saved.stated is not None and saved.algo == algo else None
    if spec.missing_state and stated is None:
        raise BadInput(
            f"{saved.path} has only weights; {algo} also needs {spec.missing_state}, without which the policy would "
            "not act as it was trained. Choose a checkpoint of its run."
        )
    config = {**module.Config(env_id=env_id).model_dump(mode="json"), **saved.config}
    inputs = ObservationEncoder.describe(env.observation_space)
    shape: dict[str, Any] = {} if spec.is_for_games else {"observation_size": inputs["size"]}
    facts: dict[str, Any] = {"algorithm": algo, "config": config, "inputs": inputs, "shape": shape}
    arrays: dict[str, Any] = {}
    if spec.needs_bounds:
        arrays = {"action.low": env.action_space.low, "action.high": env.action_space.high}
        # The model lacks networks that are trained but do not act.
        architecture = Architecture.from_settings(config, module.NETWORK)
        image = find_image(env.observation_space)
        if image is not None and "actor.fc1.weight" not in weights:  # which a network for flattened images has
            shape["image"], architecture = list(image), architecture._replace(image=image)
        complete = module.Agent(inputs["size"], *arrays.values(), architecture).state_dict()
        missing = [name for name in complete if name.startswith(f"{spec.model_parts[0]}.") and name not in weights]
        if missing:
            raise BadInput(f"{saved.path} lacks {missing[0]!r} of {algo}. Choose another file.")
        weights = {**complete, **weights}
    elif stated is not None:
        pass  # it has the rest
    elif choices := find_choices(env.action_space):
        shape |= {"actions": int(choices.counts.sum())}
        arrays = {"action.counts": choices.counts, "action.first": choices.first}
    else:
        shape |= {"actions": int(env.action_space.n)}
        shape |= {name: config[name] for name in ("n_atoms", "v_min", "v_max", "n_quantiles") if name in config}
        facts["first_action"] = int(env.action_space.start)
    if stated is not None:
        facts, arrays = {**facts, **stated.facts, "config": config}, {**arrays, **stated.arrays}
    return Checkpoint(saved.path, 0, weights, arrays, facts, {})


def _policy_label(saved: SavedPolicy) -> str:
    return f"The checkpoint {saved.path}" if saved.checkpoint is not None else str(saved.path)


def _check_spaces(saved: SavedPolicy, env_id: str, env: Any, make_env: Callable[..., Any]) -> None:
    trained = make_env(saved.env_id, **saved.env_settings)
    ours, theirs = _describe_spaces(env), _describe_spaces(trained)
    trained.close()
    if ours != theirs:
        raise BadInput(
            f"{_policy_label(saved)} was trained on {saved.env_id!r} ({theirs}); "
            f"{env_id!r} has {ours}. Choose an environment with the same spaces."
        )


def _describe_spaces(env: Any) -> str:
    """Describe what a policy depends on: shapes and counts, not bounds."""
    return ", ".join(
        f"{name} {type(space).__name__} {getattr(space, 'n', getattr(space, 'nvec', space.shape))}"
        for name, space in (("observations", env.observation_space), ("actions", env.action_space))
    )


def try_one_action(saved: SavedPolicy, env_id: str, env: Any, policy: EvaluablePolicy) -> None:
    """Compute one action for the first observation."""
    observation, _ = env.reset(seed=0)
    try:
        actions = policy.act(
            make_array_converter(env.observation_space)(observation)[None], True, np.random.default_rng(0)
        )
    except (ValueError, IndexError) as error:
        raise BadInput(f"The weights of {saved.path} do not fit {env_id!r} ({error}).") from error
    if np.shape(actions)[1:] != env.action_space.shape:
        raise BadInput(f"The actions of {saved.path} do not fit {env_id!r} ({env.action_space}).")
    if not np.isfinite(np.asarray(actions, np.float64)).all():
        raise BadInput(
            f"The weights of {saved.path} give actions on {env_id!r} that are not finite. Choose an earlier checkpoint."
        )


def check_evaluation(request: WorkerRequest) -> dict[str, Any]:
    """Return the evaluation's part of a dry run's summary."""
    match = load_for_evaluation(request)
    checkpoint = match.saved_policy.checkpoint
    return {
        "module": "" if match.algo == SB3 else module_name(match.algo),
        "algo": match.algo,
        "env_id": match.env_id,
        "policy_path": str(match.path),
        "checkpoint_step": match.step,
        "seed": match.first_seed,
        "settings": match.saved_policy.config,
        "environment": match.environment_summary,
        "backend": None if checkpoint is None else checkpoint.facts.get("backend"),
        "eval_batch_size": batch_size(request.payload),
        "eval_repeat": request.evaluation.repeat,
        "eval_stochastic": request.evaluation.stochastic,
    }
