"""Robust policy optimization for continuous actions.

Like ppo_continuous_action with one change: in each epoch of an update, uniform noise within ±`rpo_alpha` is added to
every action mean. This keeps the policy from becoming deterministic too early and improves exploration and the final
return on many tasks; a few tasks with precise actions need a small `rpo_alpha` (0.01). Try it if ppo_continuous_action
gets stuck.

Paper: Rahman, Xue, "Robust Policy Optimization in Deep Reinforcement Learning", arXiv:2212.07536 (2022).
Based on: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker import ppo_kernels
from cleanrl_worker.algorithms import base, ppo_continuous_action
from cleanrl_worker.algorithms.settings import LEARNING
from cleanrl_worker.learners import PpoLearner, PpoSettings
from cleanrl_worker.normalization import ObservationNormalizer, RewardNormalizer
from cleanrl_worker.ppo_kernels import PpoLosses, RolloutBatch
from cleanrl_worker.ppo_network import FrozenPpoActor, PpoNetwork
from cleanrl_worker.vector_envs import VectorEnvs
from mosaic import envs
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    import torch

    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "rpo_continuous_action"
HIDDEN = (64, 64)


class Config(ppo_continuous_action.Config, defaults={"total_timesteps": 8_000_000, "exp_name": NAME}):
    """Settings of RPO for continuous actions."""

    rpo_alpha: float = Field(default=0.5, ge=0, le=100, json_schema_extra=LEARNING)
    """The range of the uniform noise on action means in updates; 0.5 is usual, 0.01 for tasks with precise actions."""


class Agent:
    """A Gaussian actor with a log standard deviation per action dimension, and a critic; two hidden layers each."""

    def __init__(self, observation_size: int, action_size: int, hidden: tuple[int, ...] = HIDDEN) -> None:
        self.network = PpoNetwork(observation_size, action_size, hidden, actor="actor_mean", has_log_std=True)
        self.parameters = self.network.flat

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return dict(self.network.named_arrays(self.network.parameters))

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.network.assign(self.network.parameters, state)

    def module(self) -> torch.nn.Module:
        """Return the same network as a torch module with these weights."""
        import torch

        def layers(outputs: int) -> torch.nn.Sequential:
            sizes = (self.network.inputs, *self.network.hidden)
            stack: list[torch.nn.Module] = []
            for before, after in zip(sizes, self.network.hidden, strict=False):
                stack += [torch.nn.Linear(before, after), torch.nn.Tanh()]
            return torch.nn.Sequential(*stack, torch.nn.Linear(sizes[-1], outputs))

        module = torch.nn.Module()
        module.critic = layers(1)
        module.actor_mean = layers(self.network.outputs)
        module.actor_logstd = torch.nn.Parameter(torch.zeros(1, self.network.outputs))
        module.load_state_dict({name: torch.from_numpy(part) for name, part in self.state_dict().items()})
        return module


def loss(module: Any, batch: Any, config: PpoSettings) -> tuple[torch.Tensor, PpoLosses]:
    """Return the reference loss of a minibatch of tensors; the numpy kernel implements its gradient by hand."""
    import torch

    mean, std = module.actor_mean(batch.observations), module.actor_logstd.exp()
    # Without argument validation, which would wait for the device.
    normal = torch.distributions.Normal(mean, std, validate_args=False)
    entropy = normal.entropy().sum(1).mean()  # type: ignore[no-untyped-call]
    log_ratio = normal.log_prob(batch.actions).sum(1) - batch.log_probs  # type: ignore[no-untyped-call]
    ratio = log_ratio.exp()

    advantages = batch.advantages
    if config.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped_ratio = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
    policy_loss = torch.max(-advantages * ratio, -advantages * clipped_ratio).mean()

    values = module.critic(batch.observations)[:, 0]
    squares = (values - batch.returns) ** 2
    if config.clip_vloss:
        clipped_values = batch.values + (values - batch.values).clamp(-config.clip_coef, config.clip_coef)
        squares = torch.max(squares, (clipped_values - batch.returns) ** 2)
    value_loss = 0.5 * squares.mean()

    kl = ((ratio - 1) - log_ratio).mean()
    clipfrac = ((ratio - 1).abs() > config.clip_coef).float().mean()
    metrics: Any = [part.detach() for part in (value_loss, policy_loss, entropy, -log_ratio.mean(), kl, clipfrac)]
    return policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss, PpoLosses(*metrics)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    space: Any = env.action_space
    if not base.is_continuous(space):
        raise base.unsupported_actions_error(NAME, "a continuous (Box) action space", env)
    base.check_observations(NAME, env)
    inputs = base.ObservationEncoder.describe(env.observation_space)
    return {
        "observations": list(env.observation_space.shape or (inputs["size"],)),
        "actions": list(space.shape),
        "parameters": Agent(inputs["size"], math.prod(space.shape)).network.size,
        "backend": base.resolve_backend(config.backend),
    }


def _learner(config: Config, agent: Agent) -> PpoLearner:
    if base.resolve_backend(config.backend) == "numpy":
        return ppo_kernels.GaussianKernel(agent.network, config.minibatch_size, config)
    from cleanrl_worker.autograd_learners import PpoAutogradLearner
    from cleanrl_worker.torch_backend import TorchContext

    # One thread: more make small networks slower, and results would depend on their number.
    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, cuda_graphs=config.cuda_graphs,
        compiles=config.compile, seed=config.seed,
    )  # fmt: skip
    return PpoAutogradLearner(agent.network, agent.module(), loss, config.minibatch_size, config, compute)


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
    action_shape, action_size = action_space.shape, math.prod(action_space.shape)
    low, high = action_space.low.ravel(), action_space.high.ravel()
    size, steps, num_envs, total = environments.observation_size, config.num_steps, config.num_envs, config.batch_size
    shape = {
        "env_id": config.env_id, "observation_size": size, "actions": action_size, "num_envs": num_envs,
        "num_steps": steps,
    }  # fmt: skip
    rng = np.random.default_rng(config.seed)
    agent = Agent(size, action_size)
    log_std = agent.network.parameters.log_std
    assert log_std is not None
    normalize = ObservationNormalizer(size)
    scale = RewardNormalizer(num_envs, config.gamma)

    raw_observations = np.zeros((num_envs, size))
    observations = np.zeros((steps + 1, num_envs, size), np.float32)
    actions = np.zeros((steps, num_envs, action_size), np.float32)
    clipped_actions = np.zeros((steps, num_envs, action_size), action_space.dtype)
    dones = np.zeros((steps, num_envs), np.bool_)
    terminals = np.zeros((steps, num_envs), np.bool_)

    if resume is None:
        iteration = global_step = 0
        agent.network.initialize(rng)
        learner = _learner(config, agent)
        environments.start()
        environments.observe(raw_observations)
        normalize(raw_observations, observations[-1])
    else:
        base.check_resumable(NAME, shape, resume)
        iteration, global_step = resume.facts["iteration"], resume.facts["global_step"]
        if global_step + total > config.total_timesteps:
            return
        agent.load_state_dict(resume.weights)
        learner = _learner(config, agent)
        base.restore_optimizer(agent.network, learner, resume.arrays, resume.facts["adam_count"])
        rng.bit_generator.state = resume.facts["rng"]
        normalize.restore(resume.arrays, resume.facts["observation_count"])
        scale.restore(resume.facts["rewards"])
        is_exact = base.restore_environments(run, environments, resume)
        environments.observe(raw_observations)
        observations[-1] = resume.arrays["inputs"] if is_exact else normalize.normalize_frozen(raw_observations)
    actor = learner.actor(num_envs)
    learning_rate = config.learning_rate

    def save() -> None:
        arrays, environment_facts = environments.checkpoint_state()
        base.save_checkpoint(
            NAME,
            run,
            global_step,
            weights=agent.state_dict(),
            arrays={
                **arrays,
                **normalize.arrays(),
                **base.optimizer_arrays(agent.network, learner),
                "inputs": observations[-1],
                "action.low": action_space.low,
                "action.high": action_space.high,
            },
            facts={
                "algorithm": NAME,
                "shape": shape,
                "config": config.model_dump(mode="json"),
                "backend": base.resolve_backend(config.backend),
                "inputs": base.ObservationEncoder.describe(environments.observation_space),
                "iteration": iteration,
                "global_step": global_step,
                "learning_rate": learning_rate,
                "adam_count": learner.count,
                "observation_count": normalize.count,
                "rewards": scale.facts(),
                "rng": random_state_to_json(rng.bit_generator.state),
                "environments": environment_facts,
            },
        )

    started_at, started_step = time.time(), global_step
    saved_step = -1 if resume is None else global_step
    while global_step + total <= config.total_timesteps and not run.stop_requested:
        iteration += 1
        if config.anneal_lr:
            learning_rate = config.learning_rate * (1 - (iteration - 1) / config.num_iterations)

        # Collect a rollout. Only means are computed at each step; values and log-probabilities follow in one batch.
        actor.refresh()
        observations[0] = observations[-1]
        dones[...] = terminals[...] = False
        truncated: list[tuple[int, int, Array]] = []
        noise: Any = rng.standard_normal(actions.shape, np.float32)
        scaled_noise = noise * np.exp(log_std.T)
        for t in range(steps):
            actor(observations[t], actions[t])
            np.add(actions[t], scaled_noise[t], out=actions[t])
            np.maximum(actions[t], low, out=clipped_actions[t])
            np.minimum(clipped_actions[t], high, out=clipped_actions[t])
            global_step += num_envs
            episode_ends = environments.step(clipped_actions[t].reshape(num_envs, *action_shape), raw_observations)
            for episode_end in episode_ends:
                dones[t, episode_end.env] = True
                terminals[t, episode_end.env] = episode_end.is_terminal
                final_observation = np.empty((1, size), np.float32)
                normalize(episode_end.observation[None], final_observation)
                if not episode_end.is_terminal:
                    truncated.append((t, episode_end.env, final_observation[0]))
                run.episode(
                    env=episode_end.env,
                    step=global_step,
                    episodic_return=episode_end.episodic_return,
                    length=episode_end.length,
                )
            normalize(raw_observations, observations[t + 1])
            run.update(global_step)
        rewards = environments.finish_rollout(clipped_actions.reshape(steps, num_envs, *action_shape))
        base.abort_if_rewards_not_finite(NAME, run, rewards, global_step - total)
        rewards = scale(rewards, terminals)

        # Estimate advantages. A truncated episode is bootstrapped with the value of its final observation; otherwise
        # the agent would learn that reaching the time limit is as bad as failing.
        values = agent.network.critic_values(observations.reshape(-1, size)).reshape(steps + 1, num_envs)
        if truncated:
            final_values = agent.network.critic_values(
                np.array([observation for _, _, observation in truncated], np.float32)
            )
            for (t, env, _), value in zip(truncated, final_values.tolist(), strict=True):
                rewards[t, env] += config.gamma * value
        advantages = ppo_kernels.gae_advantages(rewards, values, dones, config.gamma, config.gae_lambda)
        returns = (advantages + values[:-1]).reshape(total)
        batch = RolloutBatch(
            observations=observations[:-1].reshape(total, size),
            actions=actions.reshape(total, action_size),
            log_probs=ppo_kernels.gaussian_log_probs(noise.reshape(total, action_size), log_std),
            advantages=advantages.reshape(total),
            returns=returns,
            values=values[:-1].reshape(total),
        )

        # Update. Adding noise to the means is equivalent to subtracting it from the actions.
        learner.begin_update(learning_rate)
        for _ in range(config.update_epochs):
            mean_noise = rng.uniform(-config.rpo_alpha, config.rpo_alpha, batch.actions.shape)
            perturbed = dataclasses.replace(batch, actions=(batch.actions - mean_noise).astype(np.float32))
            learner.run_epoch(perturbed, rng.permutation(total))
            if config.target_kl is not None and learner.losses().approx_kl > config.target_kl:
                break
        learner.sync_networks()

        # Report.
        losses = {f"losses/{name}": value for name, value in learner.losses()._asdict().items()}
        base.abort_if_not_finite(NAME, run, global_step, losses)
        variance = float(returns.var())
        if variance > 0:
            losses["losses/explained_variance"] = 1 - float((returns - batch.values).var()) / variance
        sps = int((global_step - started_step) / (time.time() - started_at))
        run.scalars(global_step, {"charts/learning_rate": learning_rate, **losses, "charts/SPS": sps})
        if run.checkpoint_due(global_step):
            save()
            saved_step = global_step
    if saved_step != global_step:
        save()


class GaussianPolicy:
    """Acts with a checkpoint's weights and observation normalizer; needs only numpy."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        base.check_checkpoint_algorithm(NAME, checkpoint)
        facts, arrays = checkpoint.facts, checkpoint.arrays
        self._agent = Agent(facts["shape"]["observation_size"], facts["shape"]["actions"])
        self._agent.load_state_dict(checkpoint.weights)
        self._actor = FrozenPpoActor(self._agent.network)
        self._inputs = base.ObservationEncoder(facts["inputs"])
        self._normalize = ObservationNormalizer(self._inputs.size)
        self._normalize.restore(arrays, facts["observation_count"])
        self._low, self._high = arrays["action.low"], arrays["action.high"]

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return mean actions if `deterministic`, else samples; clipped to the action space in both cases."""
        actions = self._actor(self._normalize.normalize_frozen(self._inputs(observations)))
        log_std = self._agent.network.parameters.log_std
        if not deterministic and log_std is not None:
            actions += rng.standard_normal(actions.shape) * np.exp(log_std.T)
        shaped = actions.reshape(len(actions), *self._low.shape).astype(self._low.dtype)
        return np.asarray(np.minimum(np.maximum(shaped, self._low), self._high))


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return GaussianPolicy(checkpoint)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order: a checkpoint sorts the names."""
    shape = checkpoint.facts["shape"]
    return {name: checkpoint.weights[name] for name in Agent(shape["observation_size"], shape["actions"]).state_dict()}
