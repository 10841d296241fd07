"""Categorical deep Q-learning (C51) for Atari games.

Like dqn_atari, but the agent learns the distribution of each action's return instead of its mean: the probabilities of
fixed values, the atoms. This is a richer training signal and usually more stable, and hardly slower, because the
convolutions take most of the time. rainbow_atari adds further improvements; ppo_atari is faster in wall-clock time.

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
from cleanrl_worker.flat_network import select_by_prefix
from cleanrl_worker.replay import FrameReplay, check_memory, restore_replay
from mosaic.contracts.payload import EnvId, SafeName
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    import torch

    from cleanrl_worker.torch_conv import ImageInferenceStep
    from cleanrl_worker.torch_replay import TargetNetworkLearner
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "c51_atari"
SIZES = ConvNetworkSizes()
OUTPUT_LAYER = "network.9"
"""CleanRL's name of the output layer."""
REPORT_EVERY = 100
"""Environment steps between reports of the losses."""
METRIC_NAMES = ("loss", "q_values")


class Config(base.AlgorithmConfig):
    """Settings of categorical deep Q-learning for Atari games."""

    env_id: EnvId = Field(default="BreakoutNoFrameskip-v4", json_schema_extra=base.RUN)
    """The game to train in, by its Gymnasium id."""
    total_timesteps: int = Field(default=10_000_000, gt=0, json_schema_extra=base.RUN)
    """Steps to train for, summed over all games; a step is four frames."""
    exp_name: SafeName = Field(default=NAME, json_schema_extra=base.RUN)
    """The name of the experiment; part of the run's name."""
    backend: Literal["auto", "torch"] = Field(default="auto", json_schema_extra=base.COMPUTE)
    """The library that computes: torch."""
    cuda_graphs: bool = Field(default=True, json_schema_extra=base.COMPUTE)
    """Whether a GPU runs each update as one CUDA graph; many times faster, with the same results."""
    compile: bool = Field(default=False, json_schema_extra=base.COMPUTE)
    """Whether torch compiles its updates; needs a C++ compiler and takes a minute at the start."""
    checkpoint_replay_mb: float = Field(default=1024, ge=0, json_schema_extra=base.RUN)
    """The maximum size of a replay buffer that is saved in checkpoints, in MB; without it resuming is not exact."""
    learning_rate: float = Field(default=2.5e-4, gt=0, lt=1, json_schema_extra=base.LEARNING)
    """The learning rate of Adam; 5e-5 to 5e-4 are usual."""
    num_envs: int = Field(default=1, ge=1, le=4096, json_schema_extra=base.ROLLOUT)
    """The number of parallel games."""
    n_atoms: int = Field(default=51, ge=2, le=10_000, json_schema_extra=base.LEARNING)
    """The number of atoms of a distribution; 51 is usual."""
    v_min: float = Field(default=-10.0, json_schema_extra=base.LEARNING)
    """The return of the lowest atom."""
    v_max: float = Field(default=10.0, json_schema_extra=base.LEARNING)
    """The return of the highest atom."""
    buffer_size: int = Field(default=1_000_000, ge=1, json_schema_extra=base.ROLLOUT)
    """The capacity of the replay buffer in transitions; a million take 7 GB of memory."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=base.LEARNING)
    """The discount factor of future rewards."""
    target_network_frequency: int = Field(default=10_000, ge=1, json_schema_extra=base.LEARNING)
    """Environment steps between copies of the online network to the target network."""
    batch_size: int = Field(default=32, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """Transitions per gradient step."""
    start_e: float = Field(default=1.0, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The initial epsilon: the probability of a random action."""
    end_e: float = Field(default=0.01, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The final epsilon."""
    exploration_fraction: float = Field(default=0.1, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """The fraction of the run over which epsilon falls from `start_e` to `end_e`."""
    learning_starts: int = Field(default=80_000, ge=0, json_schema_extra=base.LEARNING)
    """Environment steps before the first gradient step."""
    train_frequency: int = Field(default=4, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """Steps per game between gradient steps."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Config:
        if self.buffer_size < self.num_envs:
            raise ValueError(
                f"buffer_size = {self.buffer_size} is too small for num_envs = {self.num_envs} environments"
            )
        if not self.v_min < self.v_max:
            raise ValueError(f"v_min = {self.v_min:g} must be below v_max = {self.v_max:g}")
        return self

    @property
    def buffer_capacity(self) -> int:
        """The capacity that is allocated: no more than the run's number of steps."""
        return max(min(self.buffer_size, self.total_timesteps), self.num_envs)

    def epsilons(self, steps: Array) -> Array:
        """Return epsilon at these environment steps."""
        duration = max(1.0, self.exploration_fraction * self.total_timesteps)
        progress = np.minimum(steps / duration, 1.0)
        return np.asarray(self.start_e + (self.end_e - self.start_e) * progress)


class Agent:
    """Three convolutions and a fully connected layer; gives the logit of each atom for each action."""

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

    def initialize(self, rng: np.random.Generator) -> None:
        self.parameters = uniform_weights(self.shapes, rng)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return {"atoms": self.atoms, **self.parameters}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.parameters = copy_checked(self.shapes, state)


# --- in torch


def distributions(weights: Mapping[str, torch.Tensor], images: torch.Tensor, n_atoms: int) -> torch.Tensor:
    """Return the probability of each atom [rows, actions, atoms] for images [rows, 84, 84, 4]."""
    import torch

    from cleanrl_worker.torch_conv import conv_features

    hidden = conv_features(weights, images)
    logits = torch.nn.functional.linear(hidden, weights[f"{OUTPUT_LAYER}.weight"], weights[f"{OUTPUT_LAYER}.bias"])
    return torch.softmax(logits.view(len(logits), -1, n_atoms), 2)


def loss(weights: Any, target: Any, batch: Any, atoms: torch.Tensor, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy to the target distribution, and the reported metrics."""
    import torch

    from cleanrl_worker.torch_value_heads import cross_entropies, mean_returns, project_onto_atoms, select_actions

    with torch.no_grad():
        next_pmfs = distributions(target, batch.next_observations, len(atoms))
        next_pmfs = select_actions(next_pmfs, mean_returns(next_pmfs, atoms).argmax(1))
        shifted_atoms = batch.rewards[:, None] + gamma * atoms * (1 - batch.terminals[:, None])
        target_pmfs = project_onto_atoms(next_pmfs, shifted_atoms, atoms)
    pmfs = select_actions(distributions(weights, batch.observations, len(atoms)), batch.actions)
    entropy = cross_entropies(target_pmfs, pmfs).mean()
    return entropy, torch.stack([entropy, (pmfs * atoms).sum(1).mean()]).detach()


def _learner(
    config: Config, agent: Agent, target: Mapping[str, Array], replay: FrameReplay
) -> tuple[TargetNetworkLearner, ImageInferenceStep]:
    """Return the learner, and the function from images to the mean return of each action."""
    import torch

    from cleanrl_worker.torch_backend import TorchContext
    from cleanrl_worker.torch_replay import ReplayFeed, TargetNetworkLearner, make_inference_step
    from cleanrl_worker.torch_value_heads import mean_returns

    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, threads=devices.thread_count(),
        cuda_graphs=config.cuda_graphs, compiles=config.compile, seed=config.seed,
    )  # fmt: skip
    atoms = torch.as_tensor(agent.atoms, device=compute.device)
    feed = ReplayFeed(replay, config.batch_size, FRAME_STACK + 1, compute)
    # The larger epsilon is from the paper.
    learner = TargetNetworkLearner(
        agent.parameters, target, functools.partial(loss, atoms=atoms, gamma=config.gamma), feed, config.learning_rate,
        epsilon=0.01 / config.batch_size, metric_names=METRIC_NAMES, compute=compute,
    )  # fmt: skip

    def values(images: torch.Tensor) -> torch.Tensor:
        return mean_returns(distributions(learner.weights, images, len(atoms)), atoms)

    return learner, make_inference_step(replay, agent.action_count, values, compute)


# --- training


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
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
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    games = AtariEnvs(config.env_id, config.num_envs, config.seed, run.frames, settings=config.env_settings)
    try:
        _train(config, run, resume, games)
    finally:
        games.close()


def _train(config: Config, run: Run, resume: Checkpoint | None, games: AtariEnvs) -> None:
    action_space: Any = games.action_space
    action_count, num_envs, frequency = int(action_space.n), config.num_envs, config.train_frequency
    shape = {
        "env_id": config.env_id, "actions": action_count, "num_envs": num_envs,
        "n_atoms": config.n_atoms, "v_min": config.v_min, "v_max": config.v_max,
    }  # fmt: skip
    rng = np.random.default_rng(config.seed)
    agent = _agent(config, action_count)
    replay = FrameReplay(config.buffer_capacity, num_envs, (FRAME_SIZE_PX, FRAME_SIZE_PX), FRAME_STACK, config.seed)
    replay.enable_block_files(run, config.checkpoint_replay_mb)
    observations = np.zeros((num_envs, *games.shape), np.uint8)
    latest_frames = observations[:, -1]
    rewards = np.zeros((frequency, num_envs))
    learning_starts = config.learning_starts

    if resume is None:
        global_step = 0
        agent.initialize(rng)
        learner, compute_values = _learner(config, agent, agent.parameters, replay)
        games.start()
        games.observe(observations)
        replay.start(latest_frames)
    else:
        base.check_resumable(NAME, shape, resume)
        global_step = resume.facts["global_step"]
        if global_step + num_envs > config.total_timesteps:
            return
        agent.load_state_dict(resume.weights)
        target = copy_checked(agent.shapes, select_by_prefix("target.", resume.arrays))
        learner, compute_values = _learner(config, agent, target, replay)
        learner.restore(resume.arrays, resume.facts["adam_count"])
        rng.bit_generator.state = resume.facts["rng"]
        is_exact = base.restore_environments(run, games, resume)
        games.observe(observations)
        if not restore_replay(run, replay, resume):
            replay.start(latest_frames)
            learning_starts += global_step
        elif not is_exact:
            replay.mark_truncated(latest_frames)

    def save() -> None:
        base.check_async_losses(NAME, run, global_step, num_envs * frequency, learner)
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
                np.copyto(choices[t], compute_values(observations).argmax(1), where=is_greedy[t])
            global_step += num_envs
            episode_ends = games.advance(choices[t], observations, rewards[t])
            replay.add(choices[t], rewards[t], episode_ends, latest_frames)
            for episode_end in episode_ends:
                if episode_end.is_full_episode:
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
                learner.update(replay)
                # Report.
                if global_step // REPORT_EVERY > start_step // REPORT_EVERY:
                    base.check_async_losses(NAME, run, global_step, num_envs * frequency, learner)
                    losses = {f"losses/{name}": value for name, value in learner.losses().items()}
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
    """Selects the action with the highest mean return for images [rows, 4, 84, 84]; needs torch."""

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
        """Return the best actions; unless `deterministic`, with the final epsilon of the training."""
        import torch

        from cleanrl_worker.torch_conv import channels_last
        from cleanrl_worker.torch_value_heads import mean_returns

        if observations.shape[1:] != (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX):
            raise ValueError(
                f"observations are {observations.shape[1:]}; expected {(FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)}"
            )
        with torch.no_grad():
            images = channels_last(torch.as_tensor(observations))
            values = mean_returns(distributions(self._weights, images, len(self._atoms)), self._atoms)
        actions = values.argmax(1).numpy()
        if not deterministic:
            is_random = rng.random(len(actions)) < self._epsilon
            actions = np.where(is_random, rng.integers(self._action_count, size=len(actions)), actions)
        return np.asarray(actions + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    shape = checkpoint.facts["shape"]
    sizes = infer_sizes(checkpoint.weights)
    agent = Agent(shape["actions"], shape["n_atoms"], shape["v_min"], shape["v_max"], sizes)
    agent.load_state_dict(checkpoint.weights)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    facts = checkpoint.facts
    return GreedyPolicy(_load_agent(checkpoint), facts["first_action"], facts["config"]["end_e"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the model that CleanRL's script would save: the settings and the weights."""
    return {"model_weights": _load_agent(checkpoint).state_dict(), "args": checkpoint.facts["config"]}
