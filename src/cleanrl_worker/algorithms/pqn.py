"""Parallelized Q-learning (PQN) for discrete actions.

Q-learning without replay buffer and target network: the agent collects a rollout from several environments and fits the
Q-values to λ-returns for a few epochs. Layer norm keeps it stable. It is simple and fast and needs little memory; use
it for discrete actions with many parallel environments. If environment steps are expensive, dqn and c51 need fewer.

Paper: Gallici et al., "Simplifying Deep Temporal Difference Learning", arXiv:2407.04811 (2024).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker import value_kernels
from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import PqnConfig
from cleanrl_worker.flat_network import NumpyRAdam
from cleanrl_worker.learners import ValueLearner
from cleanrl_worker.perceptron import Perceptron
from cleanrl_worker.value_kernels import ReturnBatch, ReturnsKernel
from cleanrl_worker.vector_envs import VectorEnvs
from mosaic import envs
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    import torch

    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "pqn"
HIDDEN = (120, 84)
METRIC_NAMES = ("td_loss", "q_values")


class Config(PqnConfig, defaults={"env_id": "CartPole-v1", "total_timesteps": 500_000, "exp_name": NAME}):
    """Settings of parallelized Q-learning."""


class Agent:
    """A Q-network with two hidden layers and layer norm."""

    def __init__(self, observation_size: int, action_count: int, hidden: tuple[int, ...] = HIDDEN) -> None:
        self.network = Perceptron(observation_size, action_count, hidden, has_layer_norm=True)
        self.parameters = self.network.flat

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return dict(self.network.named_arrays(self.network.parameters))

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.network.assign(self.network.parameters, state)

    def module(self) -> torch.nn.Module:
        """Return the same network as a torch module with these weights."""
        import torch

        sizes = (self.network.inputs, *self.network.hidden)
        stack: list[torch.nn.Module] = []
        for before, after in zip(sizes, self.network.hidden, strict=False):
            stack += [torch.nn.Linear(before, after), torch.nn.LayerNorm(after), torch.nn.ReLU()]
        module = torch.nn.Module()
        module.network = torch.nn.Sequential(*stack, torch.nn.Linear(sizes[-1], self.network.outputs))
        module.load_state_dict({name: torch.from_numpy(part) for name, part in self.state_dict().items()})
        return module


def loss(module: Any, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the reference loss of a minibatch of tensors; the numpy kernel implements its gradient by hand."""
    import torch

    values = module.network(batch.observations).gather(1, batch.actions[:, None])[:, 0]
    error = torch.nn.functional.mse_loss(values, batch.returns)
    return error, {"td_loss": error.detach(), "q_values": values.detach().mean()}


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


def _learner(config: Config, agent: Agent) -> ValueLearner:
    if base.resolve_backend(config.backend) == "numpy":
        return ReturnsKernel(
            agent.network, config.minibatch_size, NumpyRAdam(agent.network, max_norm=config.max_grad_norm)
        )
    from cleanrl_worker.autograd_learners import ValueAutogradLearner
    from cleanrl_worker.torch_backend import TorchRAdam

    return ValueAutogradLearner(agent, loss, config, METRIC_NAMES, max_norm=config.max_grad_norm, optimizer=TorchRAdam)


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
    values = np.zeros((steps + 1, action_count, num_envs), np.float32)
    dones = np.zeros((steps, num_envs), np.bool_)

    if resume is None:
        iteration = global_step = 0
        agent.network.initialize_orthogonal(rng)
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
    compute_values = learner.forward(num_envs)
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

        # Collect a rollout. The Q-values that select the actions are stored, because the returns need them.
        observations[0] = observations[-1]
        dones[...] = False
        truncated: list[tuple[int, int, Array]] = []
        epsilons = config.epsilons(global_step + num_envs * np.arange(1, steps + 1))
        is_greedy = rng.random((steps, num_envs)) >= epsilons[:, None]
        actions = rng.integers(action_count, size=(steps, num_envs))
        for t in range(steps):
            values[t] = compute_values(observations[t])
            np.copyto(actions[t], values[t].argmax(0), where=is_greedy[t])
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

        # Compute returns. A truncated episode is bootstrapped with the value of its final observation; otherwise
        # the agent would learn that reaching the time limit is as bad as failing.
        values[-1] = compute_values(observations[-1])
        if truncated:
            final_values = agent.network(np.array([observation for _, _, observation in truncated], np.float32)).max(1)
            for (t, env, _), value in zip(truncated, final_values.tolist(), strict=True):
                rewards[t, env] += config.gamma * value
        returns = value_kernels.q_lambda_returns(rewards, values[1:].max(1), dones, config.gamma, config.q_lambda)
        batch = ReturnBatch(observations[:-1].reshape(total, size), actions.reshape(total), returns.reshape(total))

        # Update.
        orders = [rng.permutation(total) for _ in range(config.update_epochs)]
        minibatches = np.concatenate(orders).reshape(-1, config.minibatch_size)
        is_finite = all(
            learner.update(ReturnBatch(*(part.take(rows, 0) for part in batch)), learning_rate) for rows in minibatches
        )
        learner.sync_networks()

        # Report.
        losses = {f"losses/{name}": value for name, value in learner.losses().items()}
        base.abort_if_not_finite(NAME, run, global_step, losses, is_finite)
        sps = int((global_step - started_step) / (time.time() - started_at))
        run.scalars(global_step, {"charts/learning_rate": learning_rate, **losses, "charts/SPS": sps})
        if run.checkpoint_due(global_step):
            save()
            saved_step = global_step
    if saved_step != global_step:
        save()


class GreedyPolicy:
    """Selects the action with the highest Q-value; needs only numpy."""

    def __init__(self, agent: Agent, inputs: base.ObservationEncoder, first_action: int, epsilon: float) -> None:
        self._agent = agent
        self._inputs = inputs
        self._first_action = first_action
        self._epsilon = epsilon

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the best actions; unless `deterministic`, with the final epsilon of the training."""
        actions = self._agent.network(self._inputs(observations)).argmax(1)
        if not deterministic:
            is_random = rng.random(len(actions)) < self._epsilon
            actions = np.where(is_random, rng.integers(self._agent.network.outputs, size=len(actions)), actions)
        return np.asarray(actions + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    shape = checkpoint.facts["shape"]
    agent = Agent(shape["observation_size"], shape["actions"])
    agent.load_state_dict(checkpoint.weights)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent, facts = _load_agent(checkpoint), checkpoint.facts
    return GreedyPolicy(
        agent, base.ObservationEncoder(facts["inputs"]), facts["first_action"], facts["config"]["end_e"]
    )


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, if it saved one."""
    return _load_agent(checkpoint).state_dict()
