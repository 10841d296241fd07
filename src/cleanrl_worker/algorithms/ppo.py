"""Proximal policy optimization for discrete actions.

The agent collects a rollout from several environments, then updates its policy on it for a few epochs, with a clipped
loss that keeps the new policy close to the old one. It is robust, needs little tuning and is a good first choice for
discrete actions. If environment steps are expensive, a method with a replay buffer (DQN, C51) needs fewer of them. For
continuous actions use ppo_continuous_action.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Details: Huang et al., "The 37 Implementation Details of Proximal Policy Optimization", ICLR Blog Track (2022).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker import ppo_kernels
from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import PpoConfig
from cleanrl_worker.learners import PpoLearner, PpoSettings
from cleanrl_worker.ppo_kernels import PpoLosses, RolloutBatch
from cleanrl_worker.ppo_network import FrozenPpoActor, PpoNetwork
from cleanrl_worker.vector_envs import VectorEnvs
from mosaic import envs
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    import torch

    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "ppo"
HIDDEN = (64, 64)


class Config(PpoConfig, defaults={"env_id": "CartPole-v1", "total_timesteps": 500_000, "exp_name": NAME}):
    """Settings of PPO for discrete actions."""


class Agent:
    """A categorical actor and a critic with two hidden layers each."""

    def __init__(self, observation_size: int, action_count: int, hidden: tuple[int, ...] = HIDDEN) -> None:
        self.network = PpoNetwork(observation_size, action_count, hidden, actor="actor")
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
        module.actor = layers(self.network.outputs)
        module.load_state_dict({name: torch.from_numpy(part) for name, part in self.state_dict().items()})
        return module


def loss(module: Any, batch: Any, config: PpoSettings) -> tuple[torch.Tensor, PpoLosses]:
    """Return the reference loss of a minibatch of tensors; the numpy kernel implements its gradient by hand."""
    import torch

    log_probs = torch.log_softmax(module.actor(batch.observations), dim=1)
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    log_ratio = log_probs.gather(1, batch.actions[:, None])[:, 0] - batch.log_probs
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
    if not isinstance(env.action_space, gymnasium.spaces.Discrete):
        raise base.unsupported_actions_error(NAME, "a discrete action space", env)
    base.check_observations(NAME, env)
    inputs = base.ObservationEncoder.describe(env.observation_space)
    return {
        "observations": list(env.observation_space.shape or (inputs["size"],)),
        "actions": int(env.action_space.n),
        "parameters": Agent(inputs["size"], int(env.action_space.n)).network.size,
        "backend": base.resolve_backend(config.backend),
    }


def _learner(config: Config, agent: Agent) -> PpoLearner:
    if base.resolve_backend(config.backend) == "numpy":
        return ppo_kernels.CategoricalKernel(agent.network, config.minibatch_size, config)
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
    first_action, action_count = int(action_space.start), int(action_space.n)
    # Numpy integers instead of Python ints: Gymnasium checks faster whether they are in the action space.
    env_actions = [action_space.dtype.type(first_action + index) for index in range(action_count)]
    size, steps, num_envs, total = environments.observation_size, config.num_steps, config.num_envs, config.batch_size
    shape = {
        "env_id": config.env_id, "observation_size": size, "actions": action_count, "num_envs": num_envs,
        "num_steps": steps,
    }  # fmt: skip
    rng = np.random.default_rng(config.seed)
    agent = Agent(size, action_count)

    observations = np.zeros((steps + 1, num_envs, size), np.float32)
    logits = np.zeros((steps, num_envs, action_count), np.float32)
    scores = np.zeros((num_envs, action_count), np.float32)
    actions = np.zeros((steps, num_envs), np.intp)
    dones = np.zeros((steps, num_envs), np.bool_)

    if resume is None:
        iteration = global_step = 0
        agent.network.initialize(rng)
        learner = _learner(config, agent)
        environments.start()
    else:
        base.check_resumable(NAME, shape, resume)
        iteration, global_step = resume.facts["iteration"], resume.facts["global_step"]
        if global_step + total > config.total_timesteps:
            return
        agent.load_state_dict(resume.weights)
        learner = _learner(config, agent)
        base.restore_optimizer(agent.network, learner, resume.arrays, resume.facts["adam_count"])
        rng.bit_generator.state = resume.facts["rng"]
        base.restore_environments(run, environments, resume)
    environments.observe(observations[-1])
    actor = learner.actor(num_envs)
    learning_rate = config.learning_rate

    def save() -> None:
        arrays, environment_facts = environments.checkpoint_state()
        base.save_checkpoint(
            NAME,
            run,
            global_step,
            weights=agent.state_dict(),
            arrays={**arrays, **base.optimizer_arrays(agent.network, learner)},
            facts={
                "algorithm": NAME,
                "shape": shape,
                "config": config.model_dump(mode="json"),
                "backend": base.resolve_backend(config.backend),
                "inputs": base.ObservationEncoder.describe(environments.observation_space),
                "first_action": first_action,
                "iteration": iteration,
                "global_step": global_step,
                "learning_rate": learning_rate,
                "adam_count": learner.count,
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

        # Collect a rollout. Only logits are computed at each step; values and log-probabilities follow in one batch.
        actor.refresh()
        observations[0] = observations[-1]
        dones[...] = False
        truncated: list[tuple[int, int, Array]] = []
        # The argmax of logits plus Gumbel noise is a sample of their softmax distribution.
        noise = base.sample_exponentials(rng, logits.shape)
        np.log(noise, out=noise)
        for t in range(steps):
            actor(observations[t], logits[t])
            np.subtract(logits[t], noise[t], out=scores)
            scores.argmax(1, out=actions[t])
            global_step += num_envs
            for episode_end in environments.step(
                [env_actions[index] for index in actions[t].tolist()], observations[t + 1]
            ):
                dones[t, episode_end.env] = True
                if not episode_end.is_terminal:
                    truncated.append((t, episode_end.env, episode_end.observation))
                run.episode(
                    env=episode_end.env,
                    step=global_step,
                    episodic_return=episode_end.episodic_return,
                    length=episode_end.length,
                )
            run.update(global_step)
        rewards = environments.finish_rollout(np.array(env_actions)[actions])
        base.abort_if_rewards_not_finite(NAME, run, rewards, global_step - total)

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
        flat_logits = logits.reshape(total, action_count)
        flat_logits -= flat_logits.max(1, keepdims=True)
        batch = RolloutBatch(
            observations=observations[:-1].reshape(total, size),
            actions=actions.reshape(total),
            log_probs=flat_logits[np.arange(total), actions.reshape(total)] - np.log(np.exp(flat_logits).sum(1)),
            advantages=advantages.reshape(total),
            returns=returns,
            values=values[:-1].reshape(total),
        )

        # Update.
        learner.begin_update(learning_rate)
        for _ in range(config.update_epochs):
            learner.run_epoch(batch, rng.permutation(total))
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


class CategoricalPolicy:
    """Acts with a checkpoint's weights; needs only numpy."""

    def __init__(self, agent: Agent, inputs: base.ObservationEncoder, first_action: int) -> None:
        self._actor = FrozenPpoActor(agent.network)
        self._inputs = inputs
        self._first_action = first_action

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        scores = self._actor(self._inputs(observations).astype(np.float32))
        if not deterministic:
            scores += rng.gumbel(size=scores.shape)
        return np.asarray(scores.argmax(1) + self._first_action)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    base.check_checkpoint_algorithm(NAME, checkpoint)
    facts = checkpoint.facts
    agent = Agent(facts["shape"]["observation_size"], facts["shape"]["actions"])
    agent.load_state_dict(checkpoint.weights)
    return CategoricalPolicy(agent, base.ObservationEncoder(facts["inputs"]), facts["first_action"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order: a checkpoint sorts the names."""
    shape = checkpoint.facts["shape"]
    return {name: checkpoint.weights[name] for name in Agent(shape["observation_size"], shape["actions"]).state_dict()}
