"""Rainbow for Atari games: deep Q-learning with its main improvements combined.

Like c51_atari it learns the return distribution of each action, and adds noisy layers for exploration, dueling value
and advantage heads, double Q-learning, n-step returns and prioritized replay. It needs the fewest game steps of all
algorithms here and the most computation per step; if steps are cheap, ppo_atari is faster in wall-clock time.

Paper: Hessel et al., "Rainbow: Combining Improvements in Deep Reinforcement Learning", arXiv:1710.02298 (2017).
"""

from __future__ import annotations

import functools
import math
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
    CONV_LAYERS,
    HIDDEN_LAYER,
    KERNEL_SIZES_AND_STRIDES,
    ConvNetworkSizes,
    copy_checked,
    parameter_count,
    trunk_shapes,
    uniform_weights,
)
from cleanrl_worker.flat_network import select_by_prefix
from cleanrl_worker.prioritized import PrioritizedReplay
from cleanrl_worker.replay import check_memory, restore_replay
from mosaic.contracts.payload import EnvId, SafeName
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    import torch

    from cleanrl_worker.torch_conv import ImageInferenceStep
    from cleanrl_worker.torch_replay import PrioritizedLearner
    from cleanrl_worker.torch_value_heads import FactorizedNoise
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "rainbow_atari"
SIZES = ConvNetworkSizes()
HEADS = ("value_head", "advantage_head")
"""Each head is two noisy layers, number 0 and 2 in CleanRL's lists."""
INITIAL_SIGMA = 0.5
"""The initial sigma of the noisy layers."""
ADAM_EPSILON = 1.5e-4
REPORT_EVERY = 100
"""Environment steps between reports of the losses."""
METRIC_NAMES = ("td_loss", "q_values")


class Config(base.AlgorithmConfig):
    """Settings of Rainbow for Atari games."""

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
    learning_rate: float = Field(default=6.25e-5, gt=0, lt=1, json_schema_extra=base.LEARNING)
    """The learning rate of Adam; 5e-5 to 2.5e-4 are usual."""
    num_envs: int = Field(default=1, ge=1, le=4096, json_schema_extra=base.ROLLOUT)
    """The number of parallel games."""
    buffer_size: int = Field(default=1_000_000, ge=1, json_schema_extra=base.ROLLOUT)
    """The capacity of the replay buffer in transitions; a million take 7 GB of memory."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=base.LEARNING)
    """The discount factor of future rewards."""
    tau: float = Field(default=1.0, gt=0, le=1, json_schema_extra=base.LEARNING)
    """The fraction by which each target update moves the target network towards the online network; 1 copies it."""
    target_network_frequency: int = Field(default=8_000, ge=1, json_schema_extra=base.LEARNING)
    """Environment steps between updates of the target network."""
    batch_size: int = Field(default=32, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """Transitions per gradient step."""
    start_e: float = Field(default=1.0, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """Ignored, because noisy layers explore; accepted so that commands for CleanRL's script work unchanged."""
    end_e: float = Field(default=0.01, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """Ignored, like `start_e`."""
    exploration_fraction: float = Field(default=0.1, ge=0, le=1, json_schema_extra=base.ROLLOUT)
    """Ignored, like `start_e`."""
    learning_starts: int = Field(default=80_000, ge=0, json_schema_extra=base.LEARNING)
    """Environment steps before the first gradient step."""
    train_frequency: int = Field(default=4, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """Steps per game between gradient steps."""
    n_step: int = Field(default=3, ge=1, le=1000, json_schema_extra=base.LEARNING)
    """The number of steps of n-step returns; 3 to 5 are usual."""
    prioritized_replay_alpha: float = Field(default=0.5, ge=0, le=1, json_schema_extra=base.LEARNING)
    """The exponent of priorities: 0 samples uniformly, 1 proportionally to the TD error."""
    prioritized_replay_beta: float = Field(default=0.4, ge=0, le=1, json_schema_extra=base.LEARNING)
    """The initial exponent of the importance-sampling weights; it grows to 1 over the run."""
    prioritized_replay_eps: float = Field(default=1e-6, gt=0, le=1, json_schema_extra=base.LEARNING)
    """A small constant that is added to each priority, so that every transition can be sampled."""
    n_atoms: int = Field(default=51, ge=2, le=10_000, json_schema_extra=base.LEARNING)
    """The number of atoms of a distribution; 51 is usual."""
    v_min: float = Field(default=-10.0, json_schema_extra=base.LEARNING)
    """The return of the lowest atom."""
    v_max: float = Field(default=10.0, json_schema_extra=base.LEARNING)
    """The return of the highest atom."""

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

    def beta(self, step: int) -> float:
        """Return the exponent of the importance-sampling weights at this environment step."""
        initial = self.prioritized_replay_beta
        return min(1.0, initial + step * (1 - initial) / self.total_timesteps)


class Agent:
    """Three convolutions and two heads of two noisy layers: value and advantages, as logits of each atom."""

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
        conv_shapes = trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes)
        inputs = conv_shapes.pop(f"{HIDDEN_LAYER}.weight")[1]
        del conv_shapes[f"{HIDDEN_LAYER}.bias"]
        self.noisy: dict[str, tuple[int, int]] = {}
        """Outputs and inputs of each noisy layer."""
        for head, outputs in zip(HEADS, (n_atoms, action_count * n_atoms), strict=True):
            self.noisy |= {f"{head}.0": (sizes.hidden, inputs), f"{head}.2": (outputs, sizes.hidden)}
        self._conv_shapes = conv_shapes
        self.shapes = dict(conv_shapes)
        for name, weight in self.noisy.items():
            for part, shape in (("weight", weight), ("bias", weight[:1])):
                self.shapes |= {f"{name}.{part}_mu": shape, f"{name}.{part}_sigma": shape}
        self.parameters: dict[str, Array] = {}
        self.noise = np.zeros(sum(map(sum, self.noisy.values())), np.float32)
        """The noise of each noisy layer's outputs and inputs, concatenated."""

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize means as torch does; sigmas are equal within a layer."""
        self.parameters = uniform_weights(self._conv_shapes, rng)
        for name, (outputs, inputs) in self.noisy.items():
            limit, shape = 1 / math.sqrt(inputs), (outputs, inputs)
            self.parameters |= {
                f"{name}.weight_mu": rng.uniform(-limit, limit, shape).astype(np.float32),
                f"{name}.weight_sigma": np.full(shape, INITIAL_SIGMA / math.sqrt(inputs), np.float32),
                f"{name}.bias_mu": rng.uniform(-limit, limit, outputs).astype(np.float32),
                f"{name}.bias_sigma": np.full(outputs, INITIAL_SIGMA / math.sqrt(outputs), np.float32),
            }

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout, with the noise of each weight."""
        state = {"support": self.atoms, **{name: self.parameters[name] for name in self._conv_shapes}}
        start = 0
        for name, (outputs, inputs) in self.noisy.items():
            output_noise, input_noise = np.split(self.noise[start : start + outputs + inputs], [outputs])
            start += outputs + inputs
            for part in ("weight_mu", "weight_sigma", "bias_mu", "bias_sigma"):
                state[f"{name}.{part}"] = self.parameters[f"{name}.{part}"]
            state |= {
                f"{name}.weight_epsilon": np.outer(output_noise, input_noise),
                f"{name}.bias_epsilon": output_noise.copy(),
            }
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.parameters = copy_checked(self.shapes, state)


# --- in torch


def distributions(
    weights: Mapping[str, torch.Tensor], noise: FactorizedNoise | None, images: torch.Tensor, n_atoms: int
) -> torch.Tensor:
    """Return the probability of each atom [rows, actions, atoms] for images [rows, 84, 84, 4]."""
    import torch
    from torch.nn.functional import conv2d, relu

    from cleanrl_worker.torch_value_heads import noisy_linear

    features = images.permute(0, 3, 1, 2).float()
    for number, (name, (_, stride)) in enumerate(zip(CONV_LAYERS, KERNEL_SIZES_AND_STRIDES, strict=True)):
        # The scaling of bytes to 0..1 is folded into the first layer's weights, which are fewer.
        weight = weights[f"{name}.weight"] if number else weights[f"{name}.weight"] / 255
        features = relu(conv2d(features, weight, weights[f"{name}.bias"], stride=stride))
    features = features.flatten(1)
    value, advantages = (
        noisy_linear(weights, noise, f"{head}.2", relu(noisy_linear(weights, noise, f"{head}.0", features))).view(
            len(features), -1, n_atoms
        )
        for head in HEADS
    )
    return torch.softmax(value + advantages - advantages.mean(1, keepdim=True), 2)


def loss(
    weights: Any, target: Any, batch: Any, noise: FactorizedNoise, target_noise: FactorizedNoise, atoms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted cross-entropy to the n-step target distribution, and the reported metrics.

    The online network selects the next action and the target network evaluates it (double Q-learning). The loss of each
    row is written to `batch.td_errors`, for its priority.
    """
    import torch

    from cleanrl_worker.torch_value_heads import cross_entropies, mean_returns, project_onto_atoms, select_actions

    noise.resample()
    target_noise.resample()
    with torch.no_grad():
        next_actions = mean_returns(distributions(weights, noise, batch.next_observations, len(atoms)), atoms).argmax(1)
        next_pmfs = select_actions(
            distributions(target, target_noise, batch.next_observations, len(atoms)), next_actions
        )
        target_pmfs = project_onto_atoms(next_pmfs, batch.rewards[:, None] + batch.discounts[:, None] * atoms, atoms)
    pmfs = select_actions(distributions(weights, noise, batch.observations, len(atoms)), batch.actions)
    entropies = cross_entropies(target_pmfs, pmfs)
    batch.td_errors.copy_(entropies.detach())
    weighted_loss = (entropies * batch.weights).mean()
    return weighted_loss, torch.stack([weighted_loss, (pmfs * atoms).sum(1).mean()]).detach()


def _learner(
    config: Config, agent: Agent, target: Mapping[str, Array], replay: PrioritizedReplay
) -> tuple[PrioritizedLearner, ImageInferenceStep, FactorizedNoise]:
    """Return the learner, the function from images to the mean return of each action, and its noise."""
    import torch

    from cleanrl_worker.torch_backend import TorchContext
    from cleanrl_worker.torch_replay import BATCH_COLUMNS, PrioritizedLearner, ReplayFeed, make_inference_step
    from cleanrl_worker.torch_value_heads import FactorizedNoise, mean_returns

    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, threads=devices.thread_count(),
        cuda_graphs=config.cuda_graphs, compiles=config.compile, seed=config.seed,
    )  # fmt: skip
    atoms = torch.as_tensor(agent.atoms, device=compute.device)
    noise, target_noise = (FactorizedNoise(agent.noisy, compute.device) for _ in range(2))
    noise.resample()
    feed = ReplayFeed(replay, config.batch_size, 2 * FRAME_STACK, compute, (*BATCH_COLUMNS, "discounts", "weights"))
    learner = PrioritizedLearner(
        agent.parameters, target, functools.partial(loss, noise=noise, target_noise=target_noise, atoms=atoms), feed,
        config.learning_rate, ADAM_EPSILON, METRIC_NAMES, compute, state_tensors=[noise.flat, target_noise.flat],
    )  # fmt: skip

    def values(images: torch.Tensor) -> torch.Tensor:
        return mean_returns(distributions(learner.weights, noise, images, len(atoms)), atoms)

    return learner, make_inference_step(replay, agent.action_count, values, compute), noise


# --- training


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_atari_env(NAME, env)
    size_bytes = PrioritizedReplay.size_bytes(config.buffer_capacity, (FRAME_SIZE_PX, FRAME_SIZE_PX))
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
    replay = PrioritizedReplay(
        config.buffer_capacity, num_envs, (FRAME_SIZE_PX, FRAME_SIZE_PX), FRAME_STACK, config.seed,
        n_step=config.n_step, gamma=config.gamma, alpha=config.prioritized_replay_alpha, beta=config.beta(0),
        epsilon=config.prioritized_replay_eps,
    )  # fmt: skip
    replay.enable_block_files(run, config.checkpoint_replay_mb)
    observations = np.zeros((num_envs, *games.shape), np.uint8)
    latest_frames = observations[:, -1]
    actions = np.zeros((frequency, num_envs), np.int64)
    rewards = np.zeros((frequency, num_envs))
    learning_starts = config.learning_starts

    if resume is None:
        global_step = 0
        agent.initialize(rng)
        learner, compute_values, noise = _learner(config, agent, agent.parameters, replay)
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
        learner, compute_values, noise = _learner(config, agent, target, replay)
        learner.restore(resume.arrays, resume.facts["adam_count"])
        noise.copy_from(resume.arrays["noise"])
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
        learner.synchronize(replay)
        weights = learner.arrays()
        arrays, environment_facts = games.checkpoint_state()
        replay_arrays, replay_facts = replay.checkpoint_state(config.checkpoint_replay_mb)
        base.save_checkpoint(
            NAME,
            run,
            global_step,
            weights={"support": agent.atoms, **weights},
            arrays={**arrays, **replay_arrays, **learner.optimizer_state(), "noise": noise.to_array()},
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
        # Act until the next gradient step, which also resamples the noise.
        start_step = global_step
        step_count = min(
            frequency - start_step // num_envs % frequency, (config.total_timesteps - start_step) // num_envs
        )
        for t in range(step_count):
            actions[t] = compute_values(observations).argmax(1)
            global_step += num_envs
            episode_ends = games.advance(actions[t], observations, rewards[t])
            replay.add(actions[t], rewards[t], episode_ends, latest_frames)
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

        # Update. If target updates were due between two gradient steps, they are done first, combined into one.
        if global_step > learning_starts:
            target_interval = config.target_network_frequency
            is_target_due = global_step % target_interval == 0
            missed_updates = (
                global_step // target_interval - max(start_step, learning_starts) // target_interval - is_target_due
            )
            if missed_updates > 0:
                learner.update_target(1 - (1 - config.tau) ** missed_updates)
            if global_step // num_envs % frequency == 0:
                replay.beta = config.beta(global_step)
                learner.update(replay)
                # Report.
                if global_step // REPORT_EVERY > start_step // REPORT_EVERY:
                    base.check_async_losses(NAME, run, global_step, num_envs * frequency, learner)
                    losses = {f"losses/{name}": value for name, value in learner.losses().items()}
                    sps = int((global_step - started_step) / (time.time() - started_at))
                    run.scalars(global_step, {**losses, "charts/SPS": sps, "charts/beta": replay.beta})
            if is_target_due:
                learner.update_target(config.tau)
        else:
            noise.resample()
        if run.checkpoint_due(global_step):
            save()
            saved_step = global_step
    if saved_step != global_step:
        save()


class GreedyPolicy:
    """Selects the action with the highest mean return for images [rows, 4, 84, 84]; needs torch."""

    def __init__(self, agent: Agent, first_action: int) -> None:
        import torch

        from cleanrl_worker.torch_conv import as_tensors
        from cleanrl_worker.torch_value_heads import FactorizedNoise

        torch.set_num_threads(devices.thread_count())
        self._weights = as_tensors(agent.parameters, torch.device("cpu"), is_learned=False)
        self._atoms = torch.as_tensor(agent.atoms)
        self._noise = FactorizedNoise(agent.noisy, torch.device("cpu"))
        self._noise.copy_from(agent.noise)
        self._first_action = first_action

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """By the mean weights; unless `deterministic`, with the noise that training ended with."""
        import torch

        from cleanrl_worker.torch_conv import channels_last
        from cleanrl_worker.torch_value_heads import mean_returns

        if observations.shape[1:] != (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX):
            raise ValueError(
                f"observations are {observations.shape[1:]}; expected {(FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)}"
            )
        noise = None if deterministic else self._noise
        with torch.no_grad():
            images = channels_last(torch.as_tensor(observations))
            values = mean_returns(distributions(self._weights, noise, images, len(self._atoms)), self._atoms)
        return np.asarray(values.argmax(1).numpy() + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    shape, weights = checkpoint.facts["shape"], checkpoint.weights
    first, second, third = (len(weights[f"{name}.bias"]) for name in CONV_LAYERS)
    sizes = ConvNetworkSizes((first, second, third), len(weights["value_head.0.bias_mu"]))
    agent = Agent(shape["actions"], shape["n_atoms"], shape["v_min"], shape["v_max"], sizes)
    agent.load_state_dict(weights)
    agent.noise[...] = checkpoint.arrays["noise"]
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return GreedyPolicy(_load_agent(checkpoint), checkpoint.facts["first_action"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the state of CleanRL's network in its order; CleanRL's script saves no model."""
    return _load_agent(checkpoint).state_dict()
