"""Soft actor-critic for continuous actions.

The agent learns Q-values from a replay buffer, and a stochastic policy that maximizes the return plus the entropy of
its actions; the weight of the entropy is tuned automatically. It needs far fewer environment steps than PPO, at many
times the computation per step: a good first choice if steps are expensive, as with robots and simulated physics. If
steps are cheap, ppo_continuous_action is faster in wall-clock time. TD3 is a deterministic alternative.

Paper: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905 (2018).
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker import devices
from cleanrl_worker.algorithms import base
from cleanrl_worker.control_kernels import LOG_STD_MAX, LOG_STD_MIN, SacKernel
from cleanrl_worker.flat_network import select_by_prefix
from cleanrl_worker.learners import ActorCriticLearner
from cleanrl_worker.perceptron import ActorCriticNetworks
from cleanrl_worker.replay import Replay, check_memory, restore_replay
from cleanrl_worker.vector_envs import VectorEnvs
from mosaic import envs
from mosaic.contracts.payload import EnvId, SafeName
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "sac_continuous_action"
HIDDEN = (256, 256)
HEADS = ("fc_mean", "fc_logstd")
REPORT_EVERY = 100
"""Updates between reports."""


class Config(base.AlgorithmConfig):
    """Settings of soft actor-critic."""

    env_id: EnvId = Field(default="Hopper-v5", json_schema_extra=base.RUN)
    """The environment to train in, by its Gymnasium id."""
    total_timesteps: int = Field(default=1_000_000, gt=0, json_schema_extra=base.RUN)
    """Environment steps to train for, summed over all environments."""
    exp_name: SafeName = Field(default=NAME, json_schema_extra=base.RUN)
    """The name of the experiment; part of the run's name."""
    checkpoint_replay_mb: float = Field(default=1024, ge=0, json_schema_extra=base.RUN)
    """The maximum size of a replay buffer that is saved in checkpoints, in MB; without it resuming is not exact."""
    cuda_graphs: bool = Field(default=True, json_schema_extra=base.COMPUTE)
    """Whether a GPU runs each update as one CUDA graph; many times faster, with the same results."""
    compile: bool = Field(default=False, json_schema_extra=base.COMPUTE)
    """Whether the torch backend compiles its updates; needs a C++ compiler and takes a minute at the start."""
    num_envs: int = Field(default=1, ge=1, le=4096, json_schema_extra=base.ROLLOUT)
    """The number of parallel environments; one update follows each step of all of them."""
    buffer_size: int = Field(default=1_000_000, ge=1, json_schema_extra=base.ROLLOUT)
    """The capacity of the replay buffer in transitions; 100,000 to 1,000,000 are usual."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=base.LEARNING)
    """The discount factor of future rewards."""
    tau: float = Field(default=0.005, gt=0, le=1, json_schema_extra=base.LEARNING)
    """The fraction by which each target update moves the target networks; 0.001 to 0.02 are usual."""
    batch_size: int = Field(default=256, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """Transitions per update; 64 to 512 are usual."""
    learning_starts: int = Field(default=5_000, ge=0, json_schema_extra=base.LEARNING)
    """Environment steps with random actions before the first update; 1,000 to 25,000 are usual."""
    policy_lr: float = Field(default=3e-4, gt=0, lt=1, json_schema_extra=base.LEARNING)
    """The learning rate of the actor; 1e-4 to 1e-3 are usual."""
    q_lr: float = Field(default=1e-3, gt=0, lt=1, json_schema_extra=base.LEARNING)
    """The learning rate of the critics and of the entropy coefficient; 3e-4 to 1e-3 are usual."""
    policy_frequency: int = Field(default=2, ge=1, le=1000, json_schema_extra=base.LEARNING)
    """Updates of the critics between updates of the actor, which then does as many steps at once."""
    target_network_frequency: int = Field(default=1, ge=1, json_schema_extra=base.LEARNING)
    """Updates of the critics between updates of the target networks."""
    alpha: float = Field(default=0.2, gt=0, le=100, json_schema_extra=base.LEARNING)
    """The entropy coefficient, if it is not tuned."""
    autotune: bool = Field(default=True, json_schema_extra=base.LEARNING)
    """Whether the entropy coefficient is tuned to reach an entropy of -1 per action dimension."""


class Agent:
    """A squashed Gaussian actor, two critics, and target networks of the critics."""

    def __init__(self, observation_size: int, low: Array, high: Array) -> None:
        self.networks = ActorCriticNetworks(
            observation_size, low.size, HIDDEN, HEADS, critics=2, has_target_actor=False
        )
        self.scale = ((high.astype(np.float64) - low) / 2).astype(np.float32)
        self.bias = ((high.astype(np.float64) + low) / 2).astype(np.float32)
        self.log_alpha = np.zeros(1, np.float32)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys with its network names as prefixes, in torch's layout."""
        bounds = {"actor.action_scale": self.scale, "actor.action_bias": self.bias}
        return {**bounds, **self.networks.state_dict(), "log_alpha": self.log_alpha}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.networks.load_state_dict(state)
        self.log_alpha[...] = state["log_alpha"]

    def squashed_actions(self, outputs: Array, noise: Array | float) -> Array:
        """Return actions [rows, actions] for the actor's outputs: tanh(mean + noise * std), scaled to the bounds."""
        mean, log_std = np.split(outputs, 2, 1)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (np.tanh(log_std) + 1)
        return np.asarray(np.tanh(mean + np.exp(log_std) * noise) * self.scale.ravel() + self.bias.ravel())


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    space: Any = env.action_space
    if not base.is_continuous(space):
        raise base.unsupported_actions_error(NAME, "a continuous (Box) action space", env)
    if not base.is_bounded(space):
        raise base.unsupported_actions_error(NAME, "a continuous (Box) action space with bounds", env)
    base.check_observations(NAME, env)
    inputs = base.ObservationEncoder.describe(env.observation_space)
    capacity = min(config.buffer_size, config.total_timesteps)
    size_bytes = Replay.size_bytes(capacity, *_replay_layout(env.observation_space, space))
    check_memory(NAME, capacity, size_bytes)
    return {
        "observations": list(env.observation_space.shape or (inputs["size"],)),
        "actions": list(space.shape),
        "parameters": Agent(inputs["size"], space.low, space.high).networks.size,
        "replay_bytes": size_bytes,
        "backend": devices.choose_backend(config.backend, config.cuda),
    }


def _replay_layout(observations: gymnasium.Space[Any], actions: Any) -> tuple[tuple[int, Any], tuple[int, Any]]:
    """Return size and type of an observation and of an action in the replay buffer."""
    seen = base.ObservationEncoder.describe(observations)["size"], base.replay_dtype(observations)
    return seen, (math.prod(actions.shape), np.float32)


def _learner(
    config: Config, agent: Agent, replay: Replay, rng: np.random.Generator, backend: str
) -> ActorCriticLearner:
    learning_rates = (config.policy_lr, config.q_lr)
    log_alpha = agent.log_alpha if config.autotune else None
    if backend == "numpy":
        return SacKernel(
            agent.networks, replay, config, learning_rates, agent.scale, agent.bias, rng,
            policy_steps=config.policy_frequency, alpha=config.alpha, log_alpha=log_alpha,
        )  # fmt: skip
    from cleanrl_worker.torch_backend import TorchContext
    from cleanrl_worker.torch_control import ContinuousSacLearner

    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, threads=devices.thread_count(),
        cuda_graphs=config.cuda_graphs, compiles=config.compile, seed=config.seed,
    )  # fmt: skip
    return ContinuousSacLearner(
        agent.networks, replay, config, learning_rates, agent.scale, agent.bias, compute,
        policy_steps=config.policy_frequency, alpha=config.alpha, log_alpha=log_alpha,
    )  # fmt: skip


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    make_env = functools.partial(envs.make, config.env_id, **config.env_settings)
    environments = VectorEnvs(make_env, config.num_envs, config.seed, run.frames)
    try:
        _train(config, run, resume, environments)
    finally:
        environments.close()


def _train(config: Config, run: Run, resume: Checkpoint | None, environments: VectorEnvs) -> None:
    action_space: Any = environments.action_space
    low, high = action_space.low.ravel(), action_space.high.ravel()
    size, num_envs = environments.observation_size, config.num_envs
    shape = {"env_id": config.env_id, "observation_size": size, "actions": low.size, "num_envs": num_envs}
    rng = np.random.default_rng(config.seed)
    agent = Agent(size, action_space.low, action_space.high)
    capacity = min(config.buffer_size, config.total_timesteps)
    replay = Replay(capacity, num_envs, *_replay_layout(environments.observation_space, action_space), seed=config.seed)
    replay.enable_block_files(run, config.checkpoint_replay_mb)
    observations = np.zeros((num_envs, size), base.replay_dtype(environments.observation_space))
    rewards = np.zeros(num_envs)
    learning_starts = config.learning_starts

    if resume is None:
        global_step = 0
        backend = devices.choose_backend(config.backend, config.cuda)
        agent.networks.initialize(rng)
        learner = _learner(config, agent, replay, rng, backend)
        environments.start()
        environments.observe(observations)
        replay.start(observations)
    else:
        base.check_resumable(NAME, shape, resume)
        global_step = resume.facts["global_step"]
        if global_step + num_envs > config.total_timesteps:
            return
        backend = devices.choose_backend(config.backend, config.cuda, resume.facts["backend"])
        agent.load_state_dict(resume.weights)
        learner = _learner(config, agent, replay, rng, backend)
        learner.restore(resume.arrays, resume.facts["optimizer"])
        rng.bit_generator.state = resume.facts["rng"]
        is_exact = base.restore_environments(run, environments, resume)
        environments.observe(observations)
        if not restore_replay(run, replay, resume):
            replay.start(observations)
            learning_starts += global_step
        elif not is_exact:
            replay.mark_truncated(observations)

    def save() -> None:
        base.check_async_losses(NAME, run, global_step, num_envs, learner)
        learner.sync_networks()
        arrays, environment_facts = environments.checkpoint_state()
        replay_arrays, replay_facts = replay.checkpoint_state(config.checkpoint_replay_mb)
        moments, optimizer_facts = learner.optimizer_state()
        base.save_checkpoint(
            NAME,
            run,
            global_step,
            weights=agent.state_dict(),
            arrays={
                **arrays,
                **replay_arrays,
                **moments,
                "action.low": action_space.low,
                "action.high": action_space.high,
            },
            facts={
                "algorithm": NAME,
                "shape": shape,
                "config": config.model_dump(mode="json"),
                "backend": backend,
                "threads": devices.thread_count(),
                "inputs": base.ObservationEncoder.describe(environments.observation_space),
                "global_step": global_step,
                "optimizer": optimizer_facts,
                "rng": random_state_to_json(rng.bit_generator.state),
                "replay": replay_facts,
                "environments": environment_facts,
            },
        )

    def losses(is_finite: bool = True) -> dict[str, float]:
        """Return the metrics to report; end the training if one is not finite."""
        base.check_async_losses(NAME, run, global_step, num_envs, learner)
        metrics = {f"losses/{name}": value for name, value in learner.losses().items()}
        base.abort_if_not_finite(NAME, run, global_step, metrics, is_finite)
        return metrics

    started_at, started_step = time.time(), global_step
    saved_step = -1 if resume is None else global_step
    while global_step + num_envs <= config.total_timesteps and not run.stop_requested:
        # Act.
        if global_step < config.learning_starts:
            actions = rng.uniform(low, high, (num_envs, low.size))
        else:
            actions = agent.squashed_actions(
                learner.act(observations), rng.standard_normal((num_envs, low.size), np.float32)
            )
            base.abort_if_actions_not_finite(NAME, run, actions, global_step, num_envs, learner)
        clipped_actions = np.clip(actions, low, high).astype(action_space.dtype)
        episode_ends = environments.advance(
            clipped_actions.reshape(num_envs, *action_space.shape), observations, rewards
        )
        global_step += num_envs
        for episode_end in episode_ends:
            run.episode(
                env=episode_end.env,
                step=global_step,
                episodic_return=episode_end.episodic_return,
                length=episode_end.length,
            )
        base.abort_if_rewards_not_finite(NAME, run, rewards[None], global_step - num_envs)
        replay.add(clipped_actions, rewards, episode_ends, observations)
        run.update(global_step)

        # Update.
        updates = global_step // num_envs
        is_learning = global_step > learning_starts
        if is_learning:
            is_finite = learner.update(
                replay, updates % config.policy_frequency == 0, updates % config.target_network_frequency == 0
            )
            if not is_finite:
                losses(is_finite)

            # Report.
            if updates % REPORT_EVERY == 0:
                sps = int((global_step - started_step) / (time.time() - started_at))
                run.scalars(global_step, {**losses(), "charts/SPS": sps})
        if run.checkpoint_due(global_step):
            if is_learning:
                losses()
            save()
            saved_step = global_step
    if saved_step != global_step:
        save()


class SquashedGaussianPolicy:
    """Acts with a checkpoint's weights; needs only numpy."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._agent = _load_agent(checkpoint)
        self._inputs = base.ObservationEncoder(checkpoint.facts["inputs"])
        self._low, self._high = checkpoint.arrays["action.low"], checkpoint.arrays["action.high"]

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return mean actions if `deterministic`, else samples."""
        outputs = self._agent.networks.actor(self._inputs(observations))
        noise = 0.0 if deterministic else rng.standard_normal((len(outputs), self._low.size), np.float32)
        actions = self._agent.squashed_actions(outputs, noise).reshape(-1, *self._low.shape)
        return np.clip(actions, self._low, self._high).astype(self._low.dtype)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    arrays = checkpoint.arrays
    agent = Agent(checkpoint.facts["shape"]["observation_size"], arrays["action.low"], arrays["action.high"])
    agent.load_state_dict(checkpoint.weights)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return SquashedGaussianPolicy(checkpoint)


def state_dict_of(checkpoint: Checkpoint) -> tuple[dict[str, Array], ...]:
    """Return actor and critics as CleanRL's TD3 script saves them; its SAC script saves no model."""
    state = _load_agent(checkpoint).state_dict()
    return tuple(select_by_prefix(f"{name}.", state) for name in ("actor", "qf1", "qf2"))
