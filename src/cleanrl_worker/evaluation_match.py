"""A saved policy and an environment that fits it; what does not go together is refused before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cleanrl_worker.config import DEFAULT_SEED, Assignment
from cleanrl_worker.evaluation_registry import Recipe, recipe
from cleanrl_worker.inspection import Saved, find_policy, flat
from cleanrl_worker.registry import algorithm, module_name
from mosaic.arena import Policy
from mosaic.arena.evaluate import array_maker
from mosaic.contracts.errors import BadInput, ConfigRefused, MosaicError
from mosaic.envs.factory import described
from mosaic.run import Checkpoint


@dataclass(frozen=True)
class Match:
    saved: Saved
    algo: str
    env_id: str
    first_seed: int
    policy: Policy
    recipe: Recipe
    environment: dict[str, Any]
    """What a person wants to know of it."""

    @property
    def facts(self) -> dict[str, Any]:
        """What every report of the evaluation says of it."""
        return {
            "algo": self.algo,
            "env_id": self.env_id,
            "policy_path": str(self.saved.path),
            "checkpoint_step": self.saved.step,
        }


def fresh_seeds(training_seed: int) -> int:
    """The first of a row of seeds far away from those that training counts up from."""
    return 1_000_000 + training_seed * 10_000


def matched(assignment: Assignment) -> Match:
    """Loads the policy and refuses, naming both sides, what does not go together."""
    _check_settings(assignment)
    assert assignment.extras.policy_path is not None
    saved = find_policy(assignment.extras.policy_path)
    asked = assignment.config
    if saved.checkpoint is not None and asked.algo not in (None, saved.algo):
        raise BadInput(f"The checkpoint {saved.path} is of {saved.algo!r}, not of {asked.algo!r}.")
    algo = asked.algo or saved.algo
    env_id = asked.env_id or saved.env_id
    for what, known, flag in (("algorithm", algo, "--algo"), ("environment", env_id, "--env-id")):
        if not known:
            raise BadInput(f"{saved.path} does not say its {what}. Name it: {flag}")
    assert algo is not None
    assert env_id is not None
    override = assignment.extras.seed_override
    seed = DEFAULT_SEED if saved.seed is None else int(saved.seed)
    chosen = recipe(algo)
    env = chosen.environment(env_id)
    try:
        if env_id != saved.env_id and saved.env_id is not None:
            _check_spaces(saved, env_id, env, chosen)
        policy = _policy(saved, algo, env_id, env, chosen)
        _try(saved, env_id, env, policy)
    finally:
        env.close()
    return Match(
        saved,
        algo,
        env_id,
        fresh_seeds(seed) if override is None else override,
        policy,
        chosen,
        described(env),
    )


def _check_settings(assignment: Assignment) -> None:
    if assignment.extras.policy_path is None:
        raise ConfigRefused("LOG705 extras.policy_path: missing. An evaluation needs the folder of a checkpoint.")
    if assignment.settings:
        path = next(iter(assignment.paths.values()))
        raise ConfigRefused(f"LOG705 {path}: an evaluation takes its settings from the checkpoint. Leave it out.")
    sizes = {assignment.extras.eval_batch_size, assignment.extras.eval_episodes} - {None}
    if len(sizes) > 1:
        raise ConfigRefused("LOG705 extras.eval_batch_size and extras.eval_episodes differ. Give one of them.")


def _policy(saved: Saved, algo: str, env_id: str, env: Any, chosen: Recipe) -> Policy:
    checkpoint = saved.checkpoint or _adopted(saved, algo, env_id, env, chosen)
    try:
        return chosen.agent(algo, checkpoint)
    except KeyError as error:
        raise BadInput(
            f"{_called(saved)} lacks {error.args[0]!r}; without it the policy would not act as it was "
            "trained. Choose another checkpoint."
        ) from error
    except (ValueError, IndexError, TypeError) as error:
        raise BadInput(f"The weights of {saved.path} do not fit {algo} on {env_id!r} ({error}).") from error


def _adopted(saved: Saved, algo: str, env_id: str, env: Any, chosen: Recipe) -> Checkpoint:
    """A checkpoint of the weights alone."""
    module = algorithm(algo)
    module.check(module.Config(env_id=env_id), env)
    try:
        weights = flat(saved.weights, chosen.parts)
    except MosaicError:
        raise BadInput(f"{saved.path} holds no state dict of {algo}. Choose another file.") from None
    if chosen.adopt is None:
        raise BadInput(
            f"{saved.path} holds weights alone; {algo} also needs {chosen.lacks}, without which the policy would not "
            "act as it was trained. Choose a checkpoint of its run."
        )
    config = {**module.Config(env_id=env_id).model_dump(mode="json"), **saved.config}
    found = chosen.adopt(algo, env, config)
    acting = [name for name in found.weights if name.startswith(f"{chosen.parts[0]}.")]
    missing = next((name for name in acting if name not in weights), None)
    if missing is not None:
        raise BadInput(f"{saved.path} lacks {missing!r} of {algo}. Choose another file.")
    return Checkpoint(saved.path, 0, {**found.weights, **weights}, found.arrays, {**found.facts, "config": config}, {})


def _called(saved: Saved) -> str:
    return f"The checkpoint {saved.path}" if saved.checkpoint is not None else str(saved.path)


def _check_spaces(saved: Saved, env_id: str, env: Any, chosen: Recipe) -> None:
    trained = chosen.environment(saved.env_id)
    ours, theirs = _spaces(env), _spaces(trained)
    trained.close()
    if ours != theirs:
        raise BadInput(
            f"{_called(saved)} was trained on {saved.env_id!r} ({theirs}); "
            f"{env_id!r} has {ours}. Choose an environment with the same spaces."
        )


def _spaces(env: Any) -> str:
    """What a policy depends on: shapes and counts, not bounds."""
    return ", ".join(
        f"{name} {type(space).__name__} {getattr(space, 'n', space.shape)}"
        for name, space in (("observations", env.observation_space), ("actions", env.action_space))
    )


def _try(saved: Saved, env_id: str, env: Any, policy: Policy) -> None:
    """One action, on the first observation."""
    import numpy as np

    observation, _ = env.reset(seed=0)
    try:
        actions = policy.act(array_maker(env.observation_space)(observation)[None], True, np.random.default_rng(0))
    except (ValueError, IndexError) as error:
        raise BadInput(f"The weights of {saved.path} do not fit {env_id!r} ({error}).") from error
    if np.shape(actions)[1:] != env.action_space.shape:
        raise BadInput(f"The actions of {saved.path} do not fit {env_id!r} ({env.action_space}).")
    if not np.isfinite(np.asarray(actions, np.float64)).all():
        raise BadInput(f"The weights of {saved.path} give no finite actions on {env_id!r}: it was saved too late.")


def check(assignment: Assignment) -> dict[str, Any]:
    """The part of a dry run's summary that is about an evaluation."""
    match = matched(assignment)
    checkpoint = match.saved.checkpoint
    return {
        "module": module_name(match.algo),
        **match.facts,
        "seed": match.first_seed,
        "settings": match.saved.config,
        "environment": match.environment,
        "backend": None if checkpoint is None else checkpoint.facts.get("backend"),
        "eval_batch_size": assignment.eval_batch_size,
        "eval_repeat": bool(assignment.extras.eval_repeat),
        "eval_stochastic": bool(assignment.extras.eval_stochastic),
    }
