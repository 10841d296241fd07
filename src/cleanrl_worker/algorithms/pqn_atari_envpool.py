"""Parallelized Q-learning (PQN) for Atari games run by envpool.

Q-learning without replay buffer and target network: the agent collects a rollout from several games and fits the
Q-values to λ-returns for a few epochs. Layer norm keeps it stable. It needs a fraction of the memory of dqn_atari and
benefits from many parallel games. One call into envpool steps all games in its own threads.

Paper: Gallici et al., "Simplifying Deep Temporal Difference Learning", arXiv:2407.04811 (2024).
Games: Weng et al., "EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine", arXiv:2206.10558.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker import devices, value_kernels
from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import EnvpoolConfig, PqnConfig
from cleanrl_worker.conv_network import (
    KERNEL_SIZES_AND_STRIDES,
    ConvNetworkSizes,
    Shapes,
    copy_checked,
    layer_shapes,
    orthogonal_weights,
    parameter_count,
)
from cleanrl_worker.envpool_envs import EnvpoolEnvs, check_envpool_env, find_task, make_envpool_env
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from cleanrl_worker.torch_conv import PqnLearner
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "pqn_atari_envpool"
SIZES = ConvNetworkSizes()
STICKINESS = 0.0
"""The probability of repeating the previous action, unless the game's id determines it."""
RECENT_EPISODES = 20
"""The number of games over which the average return is reported."""
make_env = functools.partial(make_envpool_env, repeat_action_probability=STICKINESS)
"""Makes the environment that `check` gets."""


class Config(EnvpoolConfig, PqnConfig, defaults={
        "exp_name": NAME, "num_envs": 8, "end_e": 0.01, "exploration_fraction": 0.1
    }):  # fmt: skip
    """Settings of parallelized Q-learning for Atari games in envpool."""


class Agent:
    """A Q-network of three convolutions and a fully connected layer, each with layer norm before its ReLU."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES) -> None:
        self.shapes: Shapes = {}
        self._norms: Shapes = {}
        seen, side = FRAME_STACK, FRAME_SIZE_PX
        for number, ((kernel, stride), channels) in enumerate(
            zip(KERNEL_SIZES_AND_STRIDES, sizes.channels, strict=True)
        ):
            side = (side - kernel) // stride + 1
            self.shapes |= layer_shapes(f"network.{3 * number}", channels, seen, kernel, kernel)
            self._add_norm(f"network.{3 * number + 1}", channels, side, side)
            seen = channels
        self.shapes |= layer_shapes("network.10", sizes.hidden, seen * side * side)
        self._add_norm("network.11", sizes.hidden)
        self.shapes |= layer_shapes("network.13", action_count, sizes.hidden)
        self.parameters: dict[str, Array] = {}

    def _add_norm(self, name: str, *shape: int) -> None:
        norm = {f"{name}.weight": shape, f"{name}.bias": shape}
        self._norms |= norm
        self.shapes |= norm

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize with orthogonal weights; layer norms start with gain 1 and offset 0."""
        layers = {name: shape for name, shape in self.shapes.items() if name not in self._norms}
        found = orthogonal_weights(layers, rng, {})
        found |= {
            name: np.full(shape, name.endswith("weight"), np.float32) for name, shape in self._norms.items()
        }  # fmt: skip
        self.parameters = {name: found[name] for name in self.shapes}

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return dict(self.parameters)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.parameters = copy_checked(self.shapes, state)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_envpool_env(NAME, env)
    return {
        "observations": [FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX],
        "actions": actions,
        "parameters": parameter_count(Agent(actions).shapes),
        "backend": "torch",
    }


def _learner(config: Config, agent: Agent, shape: tuple[int, ...]) -> PqnLearner:
    from cleanrl_worker.torch_backend import TorchContext
    from cleanrl_worker.torch_conv import PqnLearner

    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, threads=devices.thread_count(),
        cuda_graphs=config.cuda_graphs, compiles=config.compile, seed=config.seed,
    )  # fmt: skip
    return PqnLearner(agent.parameters, shape, config, compute)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    task = find_task(config.env_id, STICKINESS)
    games = EnvpoolEnvs(task, config.num_envs, config.seed, devices.thread_count(), run.frames)
    try:
        _train(config, run, resume, games)
    finally:
        games.close()


def _train(config: Config, run: Run, resume: Checkpoint | None, games: EnvpoolEnvs) -> None:
    action_space: Any = games.action_space
    action_count = int(action_space.n)
    steps, num_envs, total = config.num_steps, config.num_envs, config.batch_size
    shape = {"env_id": config.env_id, "actions": action_count, "num_envs": num_envs, "num_steps": steps}
    rng = np.random.default_rng(config.seed)
    agent = Agent(action_count, SIZES)

    observations = np.zeros((steps + 1, num_envs, *games.shape), np.uint8)
    values = np.zeros((steps + 1, num_envs, action_count), np.float32)
    dones = np.zeros((steps, num_envs), np.bool_)
    recent: deque[float] = deque(maxlen=RECENT_EPISODES)

    if resume is None:
        iteration = global_step = 0
        agent.initialize(rng)
        learner = _learner(config, agent, games.shape)
        games.start()
    else:
        base.check_resumable(NAME, shape, resume)
        iteration, global_step = resume.facts["iteration"], resume.facts["global_step"]
        if global_step + total > config.total_timesteps:
            return
        agent.load_state_dict(resume.weights)
        learner = _learner(config, agent, games.shape)
        learner.restore(resume.arrays, resume.facts["adam_count"])
        rng.bit_generator.state = resume.facts["rng"]
        recent.extend(resume.facts["recent"])
        base.restore_environments(run, games, resume)
    games.observe(observations[-1])
    learning_rate = config.learning_rate

    def state() -> dict[str, Any]:
        """Return copies of everything that a checkpoint contains."""
        arrays, environment_facts = games.checkpoint_state()
        return {
            "step": global_step,
            "weights": learner.arrays(),
            "arrays": {**arrays, **learner.optimizer_state()},
            "facts": {
                "algorithm": NAME,
                "shape": shape,
                "config": config.model_dump(mode="json"),
                "backend": "torch",
                "threads": devices.thread_count(),
                "first_action": int(action_space.start),
                "iteration": iteration,
                "global_step": global_step,
                "learning_rate": learning_rate,
                "adam_count": learner.adam.count,
                "rng": random_state_to_json(rng.bit_generator.state),
                "recent": list(recent),
                "environments": environment_facts,
            },
        }

    started_at, started_step = time.time(), global_step
    saved_step = -1 if resume is None else global_step
    # A rollout and its update take seconds on a CPU. A run that is stopped meanwhile resumes from before them.
    latest_state = state()
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
            values[t] = learner.act(observations[t])
            np.copyto(actions[t], values[t].argmax(1), where=is_greedy[t])
            global_step += num_envs
            for episode_end in games.step(actions[t], observations[t + 1]):
                dones[t, episode_end.env] = True
                if not episode_end.is_terminal:
                    truncated.append((t, episode_end.env, episode_end.observation))
                if episode_end.is_full_episode:
                    run.episode(
                        env=episode_end.env,
                        step=global_step,
                        episodic_return=episode_end.episodic_return,
                        length=episode_end.length,
                    )
                    recent.append(episode_end.episodic_return)
                    run.scalar("charts/avg_episodic_return", fmean(recent), global_step)
            run.update(global_step)
            if run.stop_requested:
                break
        if run.stop_requested:
            break
        rewards = games.finish_rollout(actions)
        base.abort_if_rewards_not_finite(NAME, run, rewards, global_step - total)

        # Compute returns. A truncated game is bootstrapped with the value of its final observation; otherwise the
        # agent would learn that reaching the time limit is as bad as failing.
        values[-1] = learner.act(observations[-1])
        if truncated:
            final_values = learner.values(np.array([observation for _, _, observation in truncated]))
            for (t, env, _), value in zip(truncated, final_values.tolist(), strict=True):
                rewards[t, env] += config.gamma * value
        returns = value_kernels.q_lambda_returns(rewards, values[1:].max(2), dones, config.gamma, config.q_lambda)

        # Update.
        learner.load_rollout(
            learning_rate,
            observations[:-1].reshape(total, *games.shape),
            actions=actions.reshape(total),
            returns=returns.reshape(total),
        )
        if not _run_update_epochs(config, run, learner, rng, global_step):
            break

        # Report.
        metrics, is_finite = learner.losses()
        losses = {f"losses/{name}": value for name, value in metrics.items()}
        base.abort_if_not_finite(NAME, run, global_step, losses, is_finite)
        sps = int((global_step - started_step) / (time.time() - started_at))
        run.scalars(global_step, {"charts/learning_rate": learning_rate, **losses, "charts/SPS": sps})
        latest_state = state()
        if run.checkpoint_due(global_step):
            base.save_checkpoint(NAME, run, **latest_state)
            saved_step = global_step
    if saved_step != latest_state["step"]:
        base.save_checkpoint(NAME, run, **latest_state)


def _run_update_epochs(
    config: Config, run: Run, learner: PqnLearner, rng: np.random.Generator, global_step: int
) -> bool:
    """Run the epochs of an update; return False if the run was asked to stop before their end."""
    is_end = global_step + config.batch_size > config.total_timesteps
    for _ in range(config.update_epochs):
        for rows in rng.permutation(config.batch_size).reshape(config.num_minibatches, -1):
            learner.update(rows)
            run.update(global_step)
            if run.stop_requested and not is_end:
                return False
    return True


class GreedyPolicy:
    """Selects the action with the highest Q-value for images [rows, 4, 84, 84]; needs torch."""

    def __init__(self, agent: Agent, first_action: int, epsilon: float) -> None:
        import torch

        from cleanrl_worker.torch_conv import as_tensors

        torch.set_num_threads(devices.thread_count())
        self._weights = as_tensors(agent.parameters, torch.device("cpu"), is_learned=False)
        self._first_action = first_action
        self._epsilon = epsilon

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the best actions; unless `deterministic`, with the final epsilon of the training."""
        import torch

        from cleanrl_worker.torch_conv import channels_last, pqn_action_values

        if observations.shape[1:] != (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX):
            raise ValueError(
                f"observations are {observations.shape[1:]}; expected {(FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)}"
            )
        with torch.no_grad():
            values = pqn_action_values(self._weights, channels_last(torch.as_tensor(observations))).numpy()
        actions = values.argmax(1)
        if not deterministic:
            is_random = rng.random(len(actions)) < self._epsilon
            actions = np.where(is_random, rng.integers(values.shape[1], size=len(actions)), actions)
        return np.asarray(actions + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    state = checkpoint.weights
    first, second, third = (len(state[f"network.{number}.bias"]) for number in (0, 3, 6))
    agent = Agent(
        len(state["network.13.bias"]), ConvNetworkSizes((first, second, third), len(state["network.10.bias"]))
    )
    agent.load_state_dict(state)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return GreedyPolicy(_load_agent(checkpoint), checkpoint.facts["first_action"], checkpoint.facts["config"]["end_e"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, if it saved one."""
    return _load_agent(checkpoint).state_dict()
