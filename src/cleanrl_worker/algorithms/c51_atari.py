"""Categorical deep Q-learning (C51) for Atari games.

As dqn_atari, but instead of the mean the agent learns the whole distribution of the return of each action: the
probabilities of a row of fixed values, the atoms. That is a richer thing to learn from and usually steadier, for little
more time: what takes long is looking at the pictures. rainbow_atari adds what was found since; ppo_atari is faster by
the clock.

Paper: Bellemare, Dabney, Munos, "A Distributional Perspective on Reinforcement Learning", arXiv:1707.06887 (2017).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from cleanrl_worker import devices
from cleanrl_worker.algorithms import base
from cleanrl_worker.atari_envs import AtariEnvs, check_atari_env
from cleanrl_worker.conv_network import (
    ConvNetworkSizes,
    copy_checked,
    infer_sizes,
    layer_shapes,
    parameter_count,
    trunk_shapes,
    uniform_weights,
)
from cleanrl_worker.replay import FrameReplay, check_memory, restore_replay
from cleanrl_worker.vector_envs import random_state_to_json
from mosaic.contracts.payload import EnvId, SafeName
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    import torch

    from cleanrl_worker.torch_conv import ImageInferenceStep
    from cleanrl_worker.torch_replay import TargetNetworkLearner
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "c51_atari"
SIZES = ConvNetworkSizes()
OUTPUT_LAYER = "network.9"
"""The layer that gives the logits, by its number in CleanRL's list."""
REPORT_EVERY = 100
"""Environment steps between two reports of the losses."""
METRIC_NAMES = ("loss", "q_values")


class Config(base.AlgorithmConfig):
    """Settings of categorical deep Q-learning for Atari games."""

    env_id: EnvId = Field(default="BreakoutNoFrameskip-v4", json_schema_extra=base.RUN)
    """The game to train in, by its Gymnasium id."""
    total_timesteps: int = Field(default=10_000_000, gt=0, json_schema_extra=base.RUN)
    """How many steps to train for, over all games together; a step is four frames."""
    exp_name: SafeName = Field(default=NAME, json_schema_extra=base.RUN)
    """The name of the experiment, part of the run's name."""
    backend: Literal["auto", "torch"] = Field(default="auto", json_schema_extra=base.COMPUTE)
    """What computes: torch."""
    cuda_graphs: bool = Field(default=True, json_schema_extra=base.COMPUTE)
    """Whether a GPU runs each update as one captured graph; many times faster, and the same numbers."""
    compile: bool = Field(default=False, json_schema_extra=base.COMPUTE)
    """Whether torch compiles its updates first; needs a compiler and a minute at the start."""
    checkpoint_replay_mb: float = Field(default=1024, ge=0, json_schema_extra=base.RUN)
    """How large a replay buffer is still saved in checkpoints, in megabytes; without it a resume is not exact."""
    learning_rate: float = Field(default=2.5e-4, gt=0, lt=1, json_schema_extra=base.LEARNING)
    """The step size of Adam; 5e-5 to 5e-4 are usual."""
    num_envs: int = Field(default=1, ge=1, le=4096, json_schema_extra=base.ROLLOUT)
    """How many games are played at once."""
    n_atoms: int = Field(default=51, ge=2, le=10_000, json_schema_extra=base.LEARNING)
    """How many atoms stand for a distribution; 51 is usual."""
    v_min: float = Field(default=-10.0, json_schema_extra=base.LEARNING)
    """The lowest return that an atom stands for."""
    v_max: float = Field(default=10.0, json_schema_extra=base.LEARNING)
    """The highest return that an atom stands for."""
    buffer_size: int = Field(default=1_000_000, ge=1, json_schema_extra=base.ROLLOUT)
    """How many of the newest transitions are kept to learn from; a million take 7 GB of memory."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=base.LEARNING)
    """The discount factor: how much a reward counts that comes one step later."""
    target_network_frequency: int = Field(default=10_000, ge=1, json_schema_extra=base.LEARNING)
    """Environment steps after which the target network becomes a copy of the learned one again."""
    batch_size: int = Field(default=32, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """How many transitions one gradient step learns from."""
    start_e: float = Field(default=1.0, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The share of random actions in the beginning."""
    end_e: float = Field(default=0.01, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The share of random actions in the end."""
    exploration_fraction: float = Field(default=0.1, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The part of the run over which the share of random actions falls from `start_e` to `end_e`."""
    learning_starts: int = Field(default=80_000, ge=0, json_schema_extra=base.LEARNING)
    """Environment steps before the first gradient step."""
    train_frequency: int = Field(default=4, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """How many steps each game is played between two gradient steps."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Config:
        if self.buffer_size < self.num_envs:
            raise ValueError(
                f"buffer_size = {self.buffer_size} has no room for one transition of each of num_envs = {self.num_envs}"
            )
        if not self.v_min < self.v_max:
            raise ValueError(f"v_min = {self.v_min:g} must be below v_max = {self.v_max:g}")
        return self

    @property
    def buffer_capacity(self) -> int:
        """A run shorter than the buffer needs no more of it."""
        return max(min(self.buffer_size, self.total_timesteps), self.num_envs)

    def epsilons(self, steps: Array) -> Array:
        """The share of random actions at these environment steps."""
        duration = max(1.0, self.exploration_fraction * self.total_timesteps)
        fallen = np.minimum(steps / duration, 1.0)
        return np.asarray(self.start_e + (self.end_e - self.start_e) * fallen)


class Agent:
    """Three convolutions, a wide layer, and the logit of each atom for each action."""

    def __init__(
        self,
        action_count: int,
        n_atoms: int = 51,
        v_min: float = -10,
        v_max: float = 10,
        sizes: ConvNetworkSizes = SIZES,
    ) -> None:
        self.atoms = np.linspace(v_min, v_max, n_atoms, dtype=np.float32)
        self.action_count = action_count
        self.shapes = {
            **trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes),
            **layer_shapes(OUTPUT_LAYER, action_count * n_atoms, sizes.hidden),
        }
        self.parameters: dict[str, Array] = {}

    def initialise(self, rng: np.random.Generator) -> None:
        self.parameters = uniform_weights(self.shapes, rng)

    def state_dict(self) -> dict[str, Array]:
        """CleanRL's keys, torch's layout."""
        return {"atoms": self.atoms, **self.parameters}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.parameters = copy_checked(self.shapes, state)


# --- in torch


def distributions(weights: Mapping[str, torch.Tensor], pictures: torch.Tensor, n_atoms: int) -> torch.Tensor:
    """The probability of each atom, [rows, actions, atoms], for pictures [rows, 84, 84, 4]."""
    import torch

    from cleanrl_worker.torch_conv import conv_features

    hidden = conv_features(weights, pictures)
    logits = torch.nn.functional.linear(hidden, weights[f"{OUTPUT_LAYER}.weight"], weights[f"{OUTPUT_LAYER}.bias"])
    return torch.softmax(logits.view(len(logits), -1, n_atoms), 2)


def loss(weights: Any, target: Any, batch: Any, atoms: torch.Tensor, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy to what the target network expects behind the next step; and the figures that are reported."""
    import torch

    from cleanrl_worker.torch_atoms import cross_entropies, mean_returns, project_onto_atoms, select_actions

    with torch.no_grad():
        following = distributions(target, batch.next_observations, len(atoms))
        following = select_actions(following, mean_returns(following, atoms).argmax(1))
        moved = batch.rewards[:, None] + gamma * atoms * (1 - batch.terminals[:, None])
        wanted = project_onto_atoms(following, moved, atoms)
    found = select_actions(distributions(weights, batch.observations, len(atoms)), batch.actions)
    entropy = cross_entropies(wanted, found).mean()
    return entropy, torch.stack([entropy, (found * atoms).sum(1).mean()]).detach()


def _learner(
    config: Config, agent: Agent, target: Mapping[str, Array], replay: FrameReplay
) -> tuple[TargetNetworkLearner, ImageInferenceStep]:
    """What learns, and what gives the mean return of each action."""
    import torch

    from cleanrl_worker.torch_atoms import mean_returns
    from cleanrl_worker.torch_backend import TorchContext
    from cleanrl_worker.torch_replay import ReplayFeed, TargetNetworkLearner, make_inference_step

    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, threads=devices.thread_count(),
        cuda_graphs=config.cuda_graphs, compiles=config.compile, seed=config.seed,
    )  # fmt: skip
    atoms = torch.as_tensor(agent.atoms, device=compute.device)
    feed = ReplayFeed(replay, config.batch_size, FRAME_STACK + 1, compute)
    # The larger epsilon is the paper's.
    learner = TargetNetworkLearner(
        agent.parameters, target, functools.partial(loss, atoms=atoms, gamma=config.gamma), feed, config,
        epsilon=0.01 / config.batch_size, metric_names=METRIC_NAMES, compute=compute,
    )  # fmt: skip

    def values(pictures: torch.Tensor) -> torch.Tensor:
        return mean_returns(distributions(learner.weights, pictures, len(atoms)), atoms)

    return learner, make_inference_step(replay, agent.action_count, values, compute)


# --- the run


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Refuses an environment that does not fit; otherwise says what the run will be made of."""
    actions = check_atari_env(NAME, env)
    size_bytes = FrameReplay.size_bytes(config.buffer_capacity, (FRAME_SIZE_PX, FRAME_SIZE_PX))
    check_memory(NAME, config.buffer_capacity, size_bytes)
    return {
        "observations": [FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX],
        "actions": actions,
        "parameters": parameter_count(_agent(config, actions).shapes),
        "replay_bytes": size_bytes,
        "backend": "torch",
    }


def _agent(config: Config, action_count: int) -> Agent:
    return Agent(action_count, config.n_atoms, config.v_min, config.v_max, SIZES)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Trains until `total_timesteps` or until the run is asked to stop; a checkpoint stands at the end of both."""
    games = AtariEnvs(config.env_id, config.num_envs, config.seed, run.frames)
    try:
        _train(config, run, resume, games)
    finally:
        games.close()


def _train(config: Config, run: Run, resume: Checkpoint | None, games: AtariEnvs) -> None:
    action_space: Any = games.action_space
    action_count, envs, frequency = int(action_space.n), config.num_envs, config.train_frequency
    shape = {
        "env_id": config.env_id, "actions": action_count, "num_envs": envs,
        "n_atoms": config.n_atoms, "v_min": config.v_min, "v_max": config.v_max,
    }  # fmt: skip
    rng = np.random.default_rng(config.seed)
    agent = _agent(config, action_count)
    replay = FrameReplay(config.buffer_capacity, envs, (FRAME_SIZE_PX, FRAME_SIZE_PX), FRAME_STACK, config.seed)
    replay.enable_block_files(run, config.checkpoint_replay_mb)
    observations = np.zeros((envs, *games.shape), np.uint8)
    newest_pictures = observations[:, -1]
    rewards = np.zeros((frequency, envs))
    learning_starts = config.learning_starts

    if resume is None:
        global_step = 0
        agent.initialise(rng)
        learner, values_of = _learner(config, agent, agent.parameters, replay)
        games.start()
        games.observe(observations)
        replay.start(newest_pictures)
    else:
        base.check_resumable(NAME, shape, resume)
        global_step = resume.facts["global_step"]
        if global_step + envs > config.total_timesteps:
            return
        agent.load_state_dict(resume.weights)
        target = copy_checked(agent.shapes, base.select_by_prefix("target.", resume.arrays))
        learner, values_of = _learner(config, agent, target, replay)
        learner.restore(resume.arrays, resume.facts["adam_count"])
        rng.bit_generator.state = resume.facts["rng"]
        is_exact = base.restore_environments(run, games, resume)
        games.observe(observations)
        if not restore_replay(run, replay, resume):
            replay.start(newest_pictures)
            learning_starts += global_step
        elif not is_exact:
            replay.mark_truncated(newest_pictures)

    def save() -> None:
        base.check_async_losses(NAME, run, global_step, envs * frequency, learner)
        weights = learner.arrays()
        arrays, environment_facts = games.checkpoint_state()
        replay_arrays, replay_facts = replay.checkpoint_state(config.checkpoint_replay_mb)
        base.save_checkpoint(
            NAME,
            run,
            global_step,
            weights={"atoms": agent.atoms, **weights},
            arrays={**arrays, **replay_arrays, **learner.optimizer_state()},
            facts={
                "algorithm": NAME,
                "shape": shape,
                "config": config.model_dump(mode="json"),
                "backend": "torch",
                "threads": devices.thread_count(),
                "first_action": int(action_space.start),
                "global_step": global_step,
                "adam_count": learner.adam.count,
                "rng": random_state_to_json(rng.bit_generator.state),
                "replay": replay_facts,
                "environments": environment_facts,
            },
        )

    started_at, started_step = time.time(), global_step
    saved_step = -1 if resume is None else global_step
    while global_step + envs <= config.total_timesteps and not run.stop_requested:
        # Play until the next gradient step. The network does not change meanwhile, so the dice are cast together.
        began = global_step
        turns = min(frequency - began // envs % frequency, (config.total_timesteps - began) // envs)
        epsilons = config.epsilons(began + envs * np.arange(turns))
        is_greedy = rng.random((turns, envs)) >= epsilons[:, None]
        choices = rng.integers(action_count, size=(turns, envs))
        is_judged: Array = is_greedy.any(1)  # type: ignore[assignment]
        for t in range(turns):
            if is_judged[t]:
                np.copyto(choices[t], values_of(observations).argmax(1), where=is_greedy[t])
            global_step += envs
            endings = games.advance(choices[t], observations, rewards[t])
            replay.add(choices[t], rewards[t], endings, newest_pictures)
            for ending in endings:
                if ending.is_full_episode:
                    run.episode(
                        env=ending.env, step=global_step, episodic_return=ending.episodic_return, length=ending.length
                    )
            run.update(global_step)
        base.abort_if_rewards_not_finite(NAME, run, rewards[:turns], began)

        # Learn. Where the target network had to be renewed between two gradient steps, that comes first.
        if global_step > learning_starts:
            every = config.target_network_frequency
            is_move_due = global_step % every == 0
            if global_step // every - max(began, learning_starts) // every > is_move_due:
                learner.update_target(1)
            if global_step // envs % frequency == 0:
                learner.update(replay)
                # Report.
                if global_step // REPORT_EVERY > began // REPORT_EVERY:
                    base.check_async_losses(NAME, run, global_step, envs * frequency, learner)
                    losses = {f"losses/{name}": value for name, value in learner.losses().items()}
                    rate = int((global_step - started_step) / (time.time() - started_at))
                    run.scalars(global_step, {**losses, "charts/SPS": rate})
            if is_move_due:
                learner.update_target(1)
        if run.checkpoint_due(global_step):
            save()
            saved_step = global_step
    if saved_step != global_step:
        save()


class GreedyPolicy:
    """Takes the action of the highest mean return for pictures [rows, 4, 84, 84]; needs torch."""

    def __init__(self, agent: Agent, first_action: int, epsilon: float) -> None:
        import torch

        from cleanrl_worker.torch_conv import as_tensors

        torch.set_num_threads(devices.thread_count())
        self._weights = as_tensors(agent.parameters, torch.device("cpu"), is_learned=False)
        self._atoms = torch.as_tensor(agent.atoms)
        self._action_count = agent.action_count
        self._first_action = first_action
        self._epsilon = epsilon

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """The best actions; unless `deterministic`, with the share of random ones that training ended with."""
        import torch

        from cleanrl_worker.torch_atoms import mean_returns
        from cleanrl_worker.torch_conv import channels_last

        if observations.shape[1:] != (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX):
            raise ValueError(
                f"observations are {observations.shape[1:]}; expected {(FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)}"
            )
        with torch.no_grad():
            pictures = channels_last(torch.as_tensor(observations))
            values = mean_returns(distributions(self._weights, pictures, len(self._atoms)), self._atoms)
        chosen = values.argmax(1).numpy()
        if not deterministic:
            is_random = rng.random(len(chosen)) < self._epsilon
            chosen = np.where(is_random, rng.integers(self._action_count, size=len(chosen)), chosen)
        return np.asarray(chosen + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    shape = checkpoint.facts["shape"]
    sizes = infer_sizes(checkpoint.weights)
    agent = Agent(shape["actions"], shape["n_atoms"], shape["v_min"], shape["v_max"], sizes)
    agent.load_state_dict(checkpoint.weights)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """The policy of a checkpoint of this algorithm."""
    facts = checkpoint.facts
    return GreedyPolicy(_load_agent(checkpoint), facts["first_action"], facts["config"]["end_e"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What CleanRL's own script would have saved as its model: the settings beside the weights."""
    return {"model_weights": _load_agent(checkpoint).state_dict(), "args": checkpoint.facts["config"]}
