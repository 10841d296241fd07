"""The training loop of algorithms for continuous actions that learn an actor and critics from a replay buffer.

Each step of all environments is stored and followed by one update of the critics; the policy and the target networks
are updated less often. An algorithm supplies its agent, its learner and how actions are sampled.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.evaluation.policies import BoundedPolicy, Sample
from cleanrl_worker.learners import devices
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.learners.protocols import ActorCriticLearner
from cleanrl_worker.loops.milestones import Milestones, TrainingState
from cleanrl_worker.loops.replay_world import check_vectors, vector_world
from cleanrl_worker.replay.buffers import Replay
from cleanrl_worker.replay.hindsight import HindsightReplay, find_goals
from mosaic.contracts.errors import problems_of
from mosaic.worker import envs
from mosaic.worker.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
REPORT_EVERY = 100
"""Updates between reports."""


def train(
    name: str,
    config: Any,
    run: Run,
    resume: Checkpoint | None,
    make_agent: Callable[[int, Array, Array, Architecture], Any],
    make_learner: Callable[[Any, Any, Any, np.random.Generator, str], ActorCriticLearner],
    explore: Callable[[Any], Sample],
    target_frequency: int,
    **shape: Any,
) -> None:
    """Train until `total_timesteps` or until the run ends earlier; both end with a checkpoint.

    The agent is made from the size of observations and the bounds of actions. Target networks are updated at every
    `target_frequency`-th update of the critics. `shape` is what else must not change when a run is resumed.
    """
    num_envs, total = config.num_envs, config.total_timesteps
    rng = np.random.default_rng(config.seed)
    learning_starts = config.learning_starts
    rewards = np.zeros(num_envs)
    with vector_world(config, run, _capacity(config), _replay_maker(name, config)) as world:
        space = world.action_space
        low, high = space.low.ravel(), space.high.ravel()
        world.shape |= {"actions": low.size, **shape}
        if config.her_goals:
            world.shape["her_goals"] = config.her_goals
        architecture = base.with_image(config, world.environments.observation_space, resume)
        if architecture.image is not None:
            world.shape["image"] = list(architecture.image)
        agent = make_agent(world.observation_size, space.low, space.high, architecture)

        # Start or resume.
        if resume is None:
            global_step = 0
            backend = devices.choose_backend(config, architecture=architecture)
            agent.networks.initialize(rng)
            learner = make_learner(config, agent, world.replay, rng, backend)
            world.start()
        else:
            base.check_resumable(name, world.shape, resume)
            global_step = resume.facts["global_step"]
            if global_step + num_envs > total:
                return
            backend = devices.choose_backend(config, resume.facts["backend"])
            agent.load_state_dict(resume.weights)
            learner = make_learner(config, agent, world.replay, rng, backend)
            learner.restore(resume.arrays, resume.facts["optimizer"])
            rng.bit_generator.state = resume.facts["rng"]
            if not world.restore(run, resume):
                learning_starts += global_step
        sample_actions = explore(agent)
        updated_step = global_step
        """The step before the latest update."""

        def update_behind() -> None:
            """On a GPU, update behind the forward pass that gives the next actions: it runs while they are taken."""
            if learner.is_asynchronous and global_step > learning_starts:
                update()

        def update() -> None:
            nonlocal updated_step
            updated_step = global_step
            updates = global_step // num_envs
            is_policy_due, is_target_due = updates % config.policy_frequency == 0, updates % target_frequency == 0
            is_finite = learner.update(world.replay, is_policy_due, is_target_due)
            if not is_finite:
                checked_losses(is_finite)
            if updates % REPORT_EVERY == 0:
                sps = int((global_step - started_step) / (time.monotonic() - started_at))
                run.scalars(global_step, {**checked_losses(), "charts/SPS": sps})

        def checked_losses(is_finite: bool = True) -> dict[str, float]:
            """Return the metrics to report; end the training if one is not finite."""
            base.check_async_losses(name, run, updated_step, num_envs, learner)
            metrics = {f"losses/{tag}": value for tag, value in learner.losses().items()}
            base.abort_if_not_finite(name, run, global_step, metrics, is_finite)
            return metrics

        def get_state(is_checkpoint: bool) -> TrainingState:
            base.check_async_losses(name, run, updated_step, num_envs, learner)
            learner.sync_networks()
            arrays, facts = world.checkpoint_state(config.checkpoint_replay_mb if is_checkpoint else 0)
            moments, optimizer_facts = learner.optimizer_state()
            arrays |= {**moments, "action.low": space.low, "action.high": space.high}
            facts |= {
                "algorithm": name,
                "config": config.model_dump(mode="json"),
                "backend": backend,
                "threads": devices.thread_count(),
                "global_step": global_step,
                "optimizer": optimizer_facts,
                "rng": random_state_to_json(rng.bit_generator.state),
            }
            return TrainingState(agent.state_dict(), arrays, facts)

        milestones = Milestones(name, config, run, resume, get_state)
        milestones.start(global_step)
        started_at, started_step = time.monotonic(), global_step
        while global_step + num_envs <= total and not run.is_ending:
            # Act: at first randomly, then by samples of the policy.
            if global_step < config.learning_starts:
                actions = rng.uniform(low, high, (num_envs, low.size))
            else:
                actions = sample_actions(learner.act(world.observations, update_behind), rng)
                base.abort_if_actions_not_finite(name, run, actions, global_step, num_envs, learner)
            clipped_actions = np.clip(actions, low, high).astype(space.dtype)
            # Step, and store what happens.
            ends = world.step(clipped_actions.reshape(num_envs, *space.shape), clipped_actions, rewards)
            global_step += num_envs
            base.abort_if_rewards_not_finite(name, run, rewards[None], global_step - num_envs)
            for end in ends:
                run.episode(env=end.env, step=global_step, episodic_return=end.episodic_return, length=end.length)

            is_learning = global_step > learning_starts
            if is_learning and not learner.is_asynchronous:
                update()
            if is_learning and run.checkpoint_due(global_step):
                checked_losses()
            milestones.update(global_step)
            run.update(global_step)
        milestones.finish(global_step)


def _replay_maker(name: str, config: Any) -> Callable[..., Replay]:
    if not config.her_goals:
        return Replay
    env = envs.make(config.env_id, **config.env_settings)
    goals = find_goals(name, env)
    env.close()
    return functools.partial(HindsightReplay, goals=goals, relabeled=config.her_goals / (config.her_goals + 1))


def _capacity(config: Any) -> int:
    return int(min(config.buffer_size, config.total_timesteps))


def check(
    name: str, config: Any, env: gymnasium.Env[Any, Any], make_agent: Callable[[int, Array, Array, Architecture], Any]
) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    space: Any = env.action_space
    if not base.is_continuous(space):
        raise base.unsupported_actions_error(name, "a continuous (Box) action space", env)
    if not base.is_bounded(space):
        raise base.unsupported_actions_error(name, "a continuous (Box) action space with bounds", env)
    if config.her_goals:
        with problems_of("her_goals"):
            find_goals(name, env)
    sizes = check_vectors(name, _capacity(config), env)
    size = base.ObservationEncoder.describe(env.observation_space)["size"]
    architecture = base.with_image(config, env.observation_space)
    return {
        **sizes,
        "actions": list(space.shape),
        "parameters": make_agent(size, space.low, space.high, architecture).networks.size,
        "backend": devices.choose_backend(config, architecture=architecture),
        **base.image_facts(architecture),
    }


# --- trained agents


def load_agent(
    name: str,
    checkpoint: Checkpoint,
    make_agent: Callable[[int, Array, Array, Architecture], Any],
    default: Architecture,
) -> Any:
    base.check_checkpoint_algorithm(name, checkpoint)
    arrays = checkpoint.arrays
    architecture = base.saved_architecture(checkpoint, default)
    size = checkpoint.facts["shape"]["observation_size"]
    agent = make_agent(size, arrays["action.low"], arrays["action.high"], architecture)
    agent.load_state_dict(checkpoint.weights)
    return agent


def load_policy(checkpoint: Checkpoint, agent: Any, sample: Sample) -> BoundedPolicy:
    inputs, arrays = base.ObservationEncoder(checkpoint.facts["inputs"]), checkpoint.arrays

    def actor(observations: Array) -> Array:
        return np.asarray(agent.networks.actor(inputs(observations)))

    return BoundedPolicy(actor, sample, arrays["action.low"], arrays["action.high"])


def trained_state_dicts(agent: Any) -> tuple[dict[str, Array], ...]:
    """Return the state dicts of actor and critics, in CleanRL's order."""
    state = agent.state_dict()
    return tuple(select_by_prefix(f"{name}.", state) for name in agent.networks.trained_networks)
