"""Categorical deep Q-learning (C51) for discrete actions.

Like dqn, but the agent learns the distribution of each action's return instead of its mean: the probabilities of fixed
values, the atoms. This is a richer training signal and usually more stable. The range of returns must be given as
`v_min` and `v_max`; if it is unknown, use dqn.

Paper: Bellemare, Dabney, Munos, "A Distributional Perspective on Reinforcement Learning", arXiv:1707.06887 (2017).
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

from cleanrl_worker.algorithms import base
from cleanrl_worker.flat_network import NumpyAdam, select_by_prefix
from cleanrl_worker.learners import TargetValueLearner
from cleanrl_worker.perceptron import Perceptron
from cleanrl_worker.replay import Replay, check_memory, restore_replay
from cleanrl_worker.value_kernels import DistributionKernel, softmax
from cleanrl_worker.vector_envs import VectorEnvs
from mosaic import envs
from mosaic.contracts.payload import EnvId, SafeName
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    import torch

    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "c51"
HIDDEN = (120, 84)
REPORT_EVERY = 100
"""Environment steps between reports of the losses."""
METRIC_NAMES = ("loss", "q_values")


class Config(base.AlgorithmConfig):
    """Settings of categorical deep Q-learning."""

    env_id: EnvId = Field(default="CartPole-v1", json_schema_extra=base.RUN)
    """The environment to train in, by its Gymnasium id."""
    total_timesteps: int = Field(default=500_000, gt=0, json_schema_extra=base.RUN)
    """Environment steps to train for, summed over all environments."""
    exp_name: SafeName = Field(default=NAME, json_schema_extra=base.RUN)
    """The name of the experiment; part of the run's name."""
    cuda_graphs: bool = Field(default=True, json_schema_extra=base.COMPUTE)
    """Whether a GPU runs each update as one CUDA graph; many times faster, with the same results."""
    compile: bool = Field(default=False, json_schema_extra=base.COMPUTE)
    """Whether the torch backend compiles its updates; needs a C++ compiler and takes a minute at the start."""
    checkpoint_replay_mb: float = Field(default=1024, ge=0, json_schema_extra=base.RUN)
    """The maximum size of a replay buffer that is saved in checkpoints, in MB; without it resuming is not exact."""
    learning_rate: float = Field(default=2.5e-4, gt=0, lt=1, json_schema_extra=base.LEARNING)
    """The learning rate of Adam; 1e-4 to 1e-3 are usual."""
    num_envs: int = Field(default=1, ge=1, le=4096, json_schema_extra=base.ROLLOUT)
    """The number of parallel environments."""
    n_atoms: int = Field(default=101, ge=2, le=10_000, json_schema_extra=base.LEARNING)
    """The number of atoms of a distribution; 51 and 101 are usual."""
    v_min: float = Field(default=-100.0, json_schema_extra=base.LEARNING)
    """The return of the lowest atom."""
    v_max: float = Field(default=100.0, json_schema_extra=base.LEARNING)
    """The return of the highest atom."""
    buffer_size: int = Field(default=10_000, ge=1, json_schema_extra=base.ROLLOUT)
    """The capacity of the replay buffer in transitions."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=base.LEARNING)
    """The discount factor of future rewards."""
    target_network_frequency: int = Field(default=500, ge=1, json_schema_extra=base.LEARNING)
    """Environment steps between copies of the online network to the target network."""
    batch_size: int = Field(default=128, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """Transitions per gradient step."""
    start_e: float = Field(default=1.0, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The initial epsilon: the probability of a random action."""
    end_e: float = Field(default=0.05, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The final epsilon."""
    exploration_fraction: float = Field(default=0.5, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The fraction of the run over which epsilon falls from `start_e` to `end_e`."""
    learning_starts: int = Field(default=10_000, ge=0, json_schema_extra=base.LEARNING)
    """Environment steps before the first gradient step."""
    train_frequency: int = Field(default=10, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """Steps per environment between gradient steps."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Config:
        if self.buffer_size < self.num_envs:
            raise ValueError(
                f"buffer_size = {self.buffer_size} is too small for num_envs = {self.num_envs} environments"
            )
        if not self.v_min < self.v_max:
            raise ValueError(f"v_min = {self.v_min:g} must be below v_max = {self.v_max:g}")
        return self

    def epsilons(self, steps: Array) -> Array:
        """Return epsilon at these environment steps."""
        duration = max(1.0, self.exploration_fraction * self.total_timesteps)
        progress = np.minimum(steps / duration, 1.0)
        return np.asarray(self.start_e + (self.end_e - self.start_e) * progress)


class Agent:
    """A network with two hidden layers that gives the logit of each atom for each action."""

    def __init__(
        self,
        observation_size: int,
        action_count: int,
        n_atoms: int = 101,
        v_min: float = -100,
        v_max: float = 100,
        hidden: tuple[int, ...] = HIDDEN,
    ) -> None:
        self.atoms = np.linspace(v_min, v_max, n_atoms, dtype=np.float32)
        self.action_count = action_count
        self.network = Perceptron(observation_size, action_count * n_atoms, hidden)
        self.parameters = self.network.flat

    def q_values(self, logits: Array) -> Array:
        """Return the mean return of each action [actions, rows]; overwrites the network's outputs [outputs, rows]."""
        shaped = logits.reshape(self.action_count, len(self.atoms), -1)
        softmax(shaped)
        return np.asarray(np.matmul(self.atoms[None], shaped)[:, 0])

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return {"atoms": self.atoms, **self.network.named_arrays(self.network.parameters)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.network.assign(self.network.parameters, state)

    def module(self) -> torch.nn.Module:
        """Return the same network as a torch module with these weights."""
        import torch

        sizes = (self.network.inputs, *self.network.hidden)
        stack: list[torch.nn.Module] = []
        for before, after in zip(sizes, self.network.hidden, strict=False):
            stack += [torch.nn.Linear(before, after), torch.nn.ReLU()]
        module = torch.nn.Module()
        module.register_buffer("atoms", torch.from_numpy(self.atoms))
        module.network = torch.nn.Sequential(*stack, torch.nn.Linear(sizes[-1], self.network.outputs))
        module.load_state_dict({name: torch.from_numpy(part) for name, part in self.state_dict().items()})
        return module


def loss(module: Any, target: Any, batch: Any, config: Config) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the reference loss of a batch of tensors; the numpy kernel implements its gradient by hand."""
    import torch

    from cleanrl_worker.torch_value_heads import cross_entropies, mean_returns, project_onto_atoms, select_actions

    def distributions(network: Any, observations: torch.Tensor) -> torch.Tensor:
        logits = network.network(observations)
        return torch.softmax(logits.view(len(logits), -1, config.n_atoms), 2)

    with torch.no_grad():
        next_pmfs = distributions(target, batch.next_observations)
        next_pmfs = select_actions(next_pmfs, mean_returns(next_pmfs, target.atoms).argmax(1))
        shifted_atoms = batch.rewards[:, None] + config.gamma * target.atoms * (1 - batch.terminals[:, None])
        target_pmfs = project_onto_atoms(next_pmfs, shifted_atoms, target.atoms)
    pmfs = select_actions(distributions(module, batch.observations), batch.actions[:, 0])
    entropy = cross_entropies(target_pmfs, pmfs).mean()
    return entropy, {"loss": entropy.detach(), "q_values": (pmfs.detach() * module.atoms).sum(1).mean()}


def _replay_layout(config: Config, space: gymnasium.Space[Any]) -> tuple[tuple[int, Any], tuple[int, Any]]:
    """Return size and type of an observation and of an action in the replay buffer."""
    return (base.ObservationEncoder.describe(space)["size"], base.replay_dtype(space)), (1, np.int64)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    if not isinstance(env.action_space, gymnasium.spaces.Discrete):
        raise base.unsupported_actions_error(NAME, "a discrete action space", env)
    base.check_observations(NAME, env)
    size_bytes = Replay.size_bytes(config.buffer_size, *_replay_layout(config, env.observation_space))
    check_memory(NAME, config.buffer_size, size_bytes)
    inputs = base.ObservationEncoder.describe(env.observation_space)
    return {
        "observations": list(env.observation_space.shape or (inputs["size"],)),
        "actions": int(env.action_space.n),
        "parameters": _agent(config, inputs["size"], int(env.action_space.n)).network.size,
        "replay_bytes": size_bytes,
        "backend": base.resolve_backend(config.backend),
    }


def _agent(config: Config, observation_size: int, action_count: int) -> Agent:
    return Agent(observation_size, action_count, config.n_atoms, config.v_min, config.v_max)


def _adam_epsilon(config: Config) -> float:
    """Adam's epsilon from the paper, larger than usual."""
    return 0.01 / config.batch_size


def _learner(config: Config, agent: Agent, target: Agent) -> TargetValueLearner:
    if base.resolve_backend(config.backend) == "numpy":
        adam = NumpyAdam(agent.network, _adam_epsilon(config))
        return DistributionKernel(agent.network, target.network, config.batch_size, adam, agent.atoms, config.gamma)
    from cleanrl_worker.autograd_learners import ValueAutogradLearner

    torch_loss = functools.partial(loss, config=config)
    return ValueAutogradLearner(agent, torch_loss, config, METRIC_NAMES, target=target, epsilon=_adam_epsilon(config))


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
    size, num_envs, frequency = environments.observation_size, config.num_envs, config.train_frequency
    shape = {
        "env_id": config.env_id, "observation_size": size, "actions": action_count, "num_envs": num_envs,
        "n_atoms": config.n_atoms, "v_min": config.v_min, "v_max": config.v_max,
    }  # fmt: skip
    rng = np.random.default_rng(config.seed)
    agent, target = _agent(config, size, action_count), _agent(config, size, action_count)
    replay = Replay(
        config.buffer_size, num_envs, *_replay_layout(config, environments.observation_space), seed=config.seed
    )
    replay.enable_block_files(run, config.checkpoint_replay_mb)
    batch = replay.allocate_batch(config.batch_size)
    observations = np.zeros((num_envs, size), base.replay_dtype(environments.observation_space))
    rewards = np.zeros((frequency, num_envs))
    learning_starts = config.learning_starts

    if resume is None:
        global_step = 0
        agent.network.initialize(rng)
        target.load_state_dict(agent.state_dict())
        learner = _learner(config, agent, target)
        environments.start()
        environments.observe(observations)
        replay.start(observations)
    else:
        base.check_resumable(NAME, shape, resume)
        global_step = resume.facts["global_step"]
        if global_step + num_envs > config.total_timesteps:
            return
        agent.load_state_dict(resume.weights)
        target.load_state_dict(select_by_prefix("target.", resume.arrays))
        learner = _learner(config, agent, target)
        base.restore_optimizer(agent.network, learner, resume.arrays, resume.facts["adam_count"])
        rng.bit_generator.state = resume.facts["rng"]
        is_exact = base.restore_environments(run, environments, resume)
        environments.observe(observations)
        if not restore_replay(run, replay, resume):
            replay.start(observations)
            learning_starts += global_step
        elif not is_exact:
            replay.mark_truncated(observations)
    compute_logits = learner.forward(num_envs)

    def save() -> None:
        base.check_async_losses(NAME, run, global_step, num_envs * frequency, learner)
        learner.sync_networks()
        arrays, environment_facts = environments.checkpoint_state()
        replay_arrays, replay_facts = replay.checkpoint_state(config.checkpoint_replay_mb)
        base.save_checkpoint(
            NAME,
            run,
            global_step,
            weights=agent.state_dict(),
            arrays={
                **arrays,
                **replay_arrays,
                **base.optimizer_arrays(agent.network, learner),
                **{f"target.{name}": part for name, part in target.state_dict().items()},
            },
            facts={
                "algorithm": NAME,
                "shape": shape,
                "config": config.model_dump(mode="json"),
                "backend": base.resolve_backend(config.backend),
                "inputs": base.ObservationEncoder.describe(environments.observation_space),
                "first_action": first_action,
                "global_step": global_step,
                "adam_count": learner.count,
                "rng": random_state_to_json(rng.bit_generator.state),
                "replay": replay_facts,
                "environments": environment_facts,
            },
        )

    started_at, started_step = time.time(), global_step
    saved_step = -1 if resume is None else global_step
    while global_step + num_envs <= config.total_timesteps and not run.stop_requested:
        # Act until the next gradient step. The network does not change meanwhile, so random numbers are drawn together.
        start_step = global_step
        step_count = min(
            frequency - start_step // num_envs % frequency, (config.total_timesteps - start_step) // num_envs
        )
        epsilons = config.epsilons(start_step + num_envs * np.arange(step_count))
        is_greedy = rng.random((step_count, num_envs)) >= epsilons[:, None]
        choices = rng.integers(action_count, size=(step_count, num_envs))
        needs_values: Array = is_greedy.any(1)  # type: ignore[assignment]
        for t in range(step_count):
            if needs_values[t]:
                np.copyto(choices[t], agent.q_values(compute_logits(observations)).argmax(0), where=is_greedy[t])
            global_step += num_envs
            episode_ends = environments.advance(choices[t] + first_action, observations, rewards[t])
            replay.add(choices[t][:, None], rewards[t], episode_ends, observations)
            for episode_end in episode_ends:
                run.episode(
                    env=episode_end.env,
                    step=global_step,
                    episodic_return=episode_end.episodic_return,
                    length=episode_end.length,
                )
            run.update(global_step)
        base.abort_if_rewards_not_finite(NAME, run, rewards[:step_count], start_step)

        # Update. If a target update was due between two gradient steps, it is done first.
        if global_step > learning_starts:
            target_interval = config.target_network_frequency
            is_target_due = global_step % target_interval == 0
            if global_step // target_interval - max(start_step, learning_starts) // target_interval > is_target_due:
                learner.update_target(1)
            if global_step // num_envs % frequency == 0:
                replay.sample(batch)
                is_finite = learner.update(batch, config.learning_rate)
                # Report.
                if not is_finite or global_step // REPORT_EVERY > start_step // REPORT_EVERY:
                    base.check_async_losses(NAME, run, global_step, num_envs * frequency, learner)
                    losses = {f"losses/{name}": value for name, value in learner.losses().items()}
                    base.abort_if_not_finite(NAME, run, global_step, losses, is_finite)
                    sps = int((global_step - started_step) / (time.time() - started_at))
                    run.scalars(global_step, {**losses, "charts/SPS": sps})
            if is_target_due:
                learner.update_target(1)
        if run.checkpoint_due(global_step):
            save()
            saved_step = global_step
    if saved_step != global_step:
        save()


class GreedyPolicy:
    """Selects the action with the highest mean return; needs only numpy."""

    def __init__(self, agent: Agent, inputs: base.ObservationEncoder, first_action: int, epsilon: float) -> None:
        self._agent = agent
        self._inputs = inputs
        self._first_action = first_action
        self._epsilon = epsilon

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the best actions; unless `deterministic`, with the final epsilon of the training."""
        logits = self._agent.network(self._inputs(observations)).T
        actions = self._agent.q_values(logits).argmax(0)
        if not deterministic:
            is_random = rng.random(len(actions)) < self._epsilon
            actions = np.where(is_random, rng.integers(self._agent.action_count, size=len(actions)), actions)
        return np.asarray(actions + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    shape = checkpoint.facts["shape"]
    agent = Agent(shape["observation_size"], shape["actions"], shape["n_atoms"], shape["v_min"], shape["v_max"])
    agent.load_state_dict(checkpoint.weights)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent, facts = _load_agent(checkpoint), checkpoint.facts
    return GreedyPolicy(
        agent, base.ObservationEncoder(facts["inputs"]), facts["first_action"], facts["config"]["end_e"]
    )


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the model that CleanRL's script would save: the settings and the weights."""
    return {"model_weights": _load_agent(checkpoint).state_dict(), "args": checkpoint.facts["config"]}
