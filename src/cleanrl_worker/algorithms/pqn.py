"""Parallelised Q-learning for discrete actions.

Q-learning without a replay buffer and without a target network: several environments play for a while, then the agent
learns from what they saw in a few passes, towards λ-returns. Normalised hidden layers keep it from running away. It is
simple, light on memory and quick, and at home where many environments can be played at once and actions are a choice
among a few. Where every environment step is expensive, dqn and c51 make more of each.

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
from pydantic import Field, model_validator

from cleanrl_worker import value_kernels
from cleanrl_worker.algorithms import base
from cleanrl_worker.perceptron import Perceptron
from cleanrl_worker.value_kernels import NumpyRAdam, ReturnBatch, ReturnsKernel, ValueLearner
from cleanrl_worker.vector_envs import VectorEnvs, random_state_to_json
from mosaic import envs
from mosaic.contracts.payload import EnvId, SafeName

if TYPE_CHECKING:
    import torch

    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "pqn"
HIDDEN = (120, 84)
METRIC_NAMES = ("td_loss", "q_values")


class Config(base.AlgorithmConfig):
    """Settings of parallelised Q-learning."""

    env_id: EnvId = Field(default="CartPole-v1", json_schema_extra=base.RUN)
    """The environment to train in, by its Gymnasium id."""
    total_timesteps: int = Field(default=500_000, gt=0, json_schema_extra=base.RUN)
    """How many environment steps to train for, over all environments together."""
    exp_name: SafeName = Field(default=NAME, json_schema_extra=base.RUN)
    """The name of the experiment, part of the run's name."""
    cuda_graphs: bool = Field(default=True, json_schema_extra=base.COMPUTE)
    """Whether a GPU runs each update as one captured graph; many times faster, and the same numbers."""
    compile: bool = Field(default=False, json_schema_extra=base.COMPUTE)
    """Whether the torch backend compiles its updates first; needs a compiler and a minute at the start."""
    learning_rate: float = Field(default=2.5e-4, gt=0, lt=1, json_schema_extra=base.LEARNING)
    """The step size of RAdam; 1e-4 to 1e-3 are usual."""
    num_envs: int = Field(default=4, ge=1, le=4096, json_schema_extra=base.ROLLOUT)
    """How many environments are played at once."""
    num_steps: int = Field(default=128, ge=1, le=1_000_000, json_schema_extra=base.ROLLOUT)
    """How many steps are played in each environment before an update."""
    num_minibatches: int = Field(default=4, ge=1, json_schema_extra=base.LEARNING)
    """Into how many minibatches a rollout is cut; each is one gradient step."""
    update_epochs: int = Field(default=4, ge=1, le=1000, json_schema_extra=base.LEARNING)
    """How many passes over a rollout an update makes."""
    anneal_lr: bool = Field(default=True, json_schema_extra=base.LEARNING)
    """Whether the learning rate falls to zero over the run."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The discount factor: how much a reward counts that comes one step later."""
    start_e: float = Field(default=1.0, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The share of random actions in the beginning."""
    end_e: float = Field(default=0.05, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The share of random actions in the end."""
    exploration_fraction: float = Field(default=0.5, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The part of the run over which the share of random actions falls from `start_e` to `end_e`."""
    max_grad_norm: float = Field(default=10.0, gt=0, json_schema_extra=base.LEARNING)
    """The greatest norm of a gradient; a longer one is cut to it."""
    q_lambda: float = Field(default=0.65, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """How far the returns look ahead: 0 is one step (biased), 1 the whole rollout (noisy)."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Config:
        if self.batch_size % self.num_minibatches:
            raise ValueError(
                f"num_envs × num_steps = {self.batch_size} rows cannot be cut into num_minibatches = "
                f"{self.num_minibatches} equal parts"
            )
        if self.total_timesteps < self.batch_size:
            raise ValueError(
                f"total_timesteps = {self.total_timesteps} is less than one rollout of num_envs × num_steps = "
                f"{self.batch_size} steps"
            )
        return self

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.num_minibatches

    @property
    def num_iterations(self) -> int:
        return self.total_timesteps // self.batch_size

    def epsilons(self, steps: Array) -> Array:
        """The share of random actions at these environment steps."""
        duration = max(1.0, self.exploration_fraction * self.total_timesteps)
        fallen = np.minimum(steps / duration, 1.0)
        return np.asarray(self.start_e + (self.end_e - self.start_e) * fallen)


class Agent:
    """A network that gives a value for each action, two normalised hidden layers."""

    def __init__(self, observation_size: int, action_count: int, hidden: tuple[int, ...] = HIDDEN) -> None:
        self.network = Perceptron(observation_size, action_count, hidden, has_layer_norm=True)
        self.parameters = self.network.flat

    def state_dict(self) -> dict[str, Array]:
        """CleanRL's keys, torch's layout."""
        return dict(self.network.named_arrays(self.network.parameters))

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.network.assign(self.network.parameters, state)

    def module(self) -> torch.nn.Module:
        """The same network in torch, with these weights."""
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
    """The reference loss of one minibatch of tensors. The numpy kernel computes its gradient by hand."""
    import torch

    values = module.network(batch.observations).gather(1, batch.actions[:, None])[:, 0]
    error = torch.nn.functional.mse_loss(values, batch.returns)
    return error, {"td_loss": error.detach(), "q_values": values.detach().mean()}


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Refuses an environment that does not fit; otherwise says what the run will be made of."""
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
    from cleanrl_worker.value_autograd import ValueAutogradLearner, create_radam

    return ValueAutogradLearner(agent, loss, create_radam, config, METRIC_NAMES, max_norm=config.max_grad_norm)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Trains until `total_timesteps` or until the run is asked to stop; a checkpoint stands at the end of both."""
    make = functools.partial(envs.make, config.env_id)
    environments = VectorEnvs(make, config.num_envs, config.seed, run.frames)
    try:
        _train(config, run, resume, environments)
    finally:
        environments.close()


def _train(config: Config, run: Run, resume: Checkpoint | None, environments: VectorEnvs) -> None:
    action_space: Any = environments.action_space
    first_action, action_count = int(action_space.start), int(action_space.n)
    # Numpy's integers and not Python's: Gymnasium's test whether an action is in its space is faster with them.
    menu = [action_space.dtype.type(first_action + index) for index in range(action_count)]
    size, steps, count, total = environments.observation_size, config.num_steps, config.num_envs, config.batch_size
    shape = {
        "env_id": config.env_id, "observation_size": size, "actions": action_count, "num_envs": count,
        "num_steps": steps,
    }  # fmt: skip
    rng = np.random.default_rng(config.seed)
    agent = Agent(size, action_count)

    observations = np.zeros((steps + 1, count, size), np.float32)
    values = np.zeros((steps + 1, action_count, count), np.float32)
    dones = np.zeros((steps, count), np.bool_)

    if resume is None:
        iteration = global_step = 0
        agent.network.initialise_orthogonal(rng)
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
    values_of = learner.forward(count)
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

        # Play. The values that choose the actions are kept: they say later what a situation was worth.
        observations[0] = observations[-1]
        dones[...] = False
        cut: list[tuple[int, int, Array]] = []
        epsilons = config.epsilons(global_step + count * np.arange(1, steps + 1))
        is_greedy = rng.random((steps, count)) >= epsilons[:, None]
        actions = rng.integers(action_count, size=(steps, count))
        for t in range(steps):
            values[t] = values_of(observations[t])
            np.copyto(actions[t], values[t].argmax(0), where=is_greedy[t])
            global_step += count
            for ending in environments.step([menu[index] for index in actions[t].tolist()], observations[t + 1]):
                dones[t, ending.env] = True
                if not ending.is_terminal:
                    cut.append((t, ending.env, ending.observation))
                run.episode(
                    env=ending.env, step=global_step, episodic_return=ending.episodic_return, length=ending.length
                )
            run.update(global_step)
        rewards = environments.finish_rollout(np.array(menu)[actions])
        base.abort_if_rewards_not_finite(NAME, run, rewards, global_step - total)

        # Judge. Behind an episode that was cut short there would have been more: the value of its last observation
        # stands for that, or the agent would learn that reaching the time limit is as bad as failing.
        values[-1] = values_of(observations[-1])
        if cut:
            ends = agent.network(np.array([observation for _, _, observation in cut], np.float32)).max(1)
            for (t, env, _), value in zip(cut, ends.tolist(), strict=True):
                rewards[t, env] += config.gamma * value
        found = value_kernels.q_lambda_returns(rewards, values[1:].max(1), dones, config.gamma, config.q_lambda)
        batch = ReturnBatch(observations[:-1].reshape(total, size), actions.reshape(total), found.reshape(total))

        # Learn.
        orders = [rng.permutation(total) for _ in range(config.update_epochs)]
        minibatches = np.concatenate(orders).reshape(-1, config.minibatch_size)
        is_finite = all(
            learner.update(ReturnBatch(*(part.take(rows, 0) for part in batch)), learning_rate) for rows in minibatches
        )
        learner.sync_networks()

        # Report.
        losses = {f"losses/{name}": value for name, value in learner.losses().items()}
        base.abort_if_not_finite(NAME, run, global_step, losses, is_finite)
        rate = int((global_step - started_step) / (time.time() - started_at))
        run.scalars(global_step, {"charts/learning_rate": learning_rate, **losses, "charts/SPS": rate})
        if run.checkpoint_due(global_step):
            save()
            saved_step = global_step
    if saved_step != global_step:
        save()


class GreedyPolicy:
    """Takes the action of the highest value by a checkpoint's weights; needs numpy only."""

    def __init__(self, agent: Agent, inputs: base.ObservationEncoder, first_action: int, epsilon: float) -> None:
        self._agent = agent
        self._inputs = inputs
        self._first_action = first_action
        self._epsilon = epsilon

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """The best actions; unless `deterministic`, with the share of random ones that training ended with."""
        chosen = self._agent.network(self._inputs(observations)).argmax(1)
        if not deterministic:
            is_random = rng.random(len(chosen)) < self._epsilon
            chosen = np.where(is_random, rng.integers(self._agent.network.outputs, size=len(chosen)), chosen)
        return np.asarray(chosen + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    shape = checkpoint.facts["shape"]
    agent = Agent(shape["observation_size"], shape["actions"])
    agent.load_state_dict(checkpoint.weights)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """The policy of a checkpoint of this algorithm."""
    agent, facts = _load_agent(checkpoint), checkpoint.facts
    return GreedyPolicy(
        agent, base.ObservationEncoder(facts["inputs"]), facts["first_action"], facts["config"]["end_e"]
    )


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """What CleanRL's own script would save, if it saved a model."""
    return _load_agent(checkpoint).state_dict()
