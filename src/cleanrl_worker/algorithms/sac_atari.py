"""Soft actor-critic for Atari games.

The agent learns Q-values from a replay buffer, and a stochastic policy that maximizes the return plus the entropy of
its actions; the weight of the entropy is tuned automatically. Actor and critics have separate convolutions over the
latest four frames, so an update takes several times as long as in dqn_atari. It explores by sampling from its policy.
On most games rainbow_atari and ppo_atari reach higher returns; use this one if you need an off-policy actor.

Papers: Christodoulou, "Soft Actor-Critic for Discrete Action Settings", arXiv:1910.07207 (2019).
Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905 (2018).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker import devices
from cleanrl_worker.algorithms import base
from cleanrl_worker.atari_envs import AtariEnvs, check_atari_env
from cleanrl_worker.conv_network import (
    HIDDEN_LAYER,
    ConvNetworkSizes,
    Shapes,
    copy_checked,
    layer_shapes,
    parameter_count,
    trunk_shapes,
)
from cleanrl_worker.flat_network import select_by_prefix
from cleanrl_worker.replay import FrameReplay, check_memory, restore_replay
from mosaic.contracts.payload import EnvId, SafeName
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from cleanrl_worker.torch_conv import ImageInferenceStep
    from cleanrl_worker.torch_discrete_sac import DiscreteSacLearner
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "sac_atari"
SIZES = ConvNetworkSizes()
HEADS = {"actor": "fc_logits", "qf1": "fc_q", "qf2": "fc_q"}
"""The networks and CleanRL's name of the last layer of each."""
REPORT_EVERY = 100
"""Environment steps between reports of the losses."""


class Config(base.AlgorithmConfig):
    """Settings of soft actor-critic for Atari games."""

    env_id: EnvId = Field(default="BeamRiderNoFrameskip-v4", json_schema_extra=base.RUN)
    """The game to train in, by its Gymnasium id."""
    total_timesteps: int = Field(default=5_000_000, gt=0, json_schema_extra=base.RUN)
    """Steps to train for; a step is four frames."""
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
    buffer_size: int = Field(default=1_000_000, ge=1, json_schema_extra=base.ROLLOUT)
    """The capacity of the replay buffer in transitions; a million take 7 GB of memory."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=base.LEARNING)
    """The discount factor of future rewards."""
    tau: float = Field(default=1.0, gt=0, le=1, json_schema_extra=base.LEARNING)
    """The fraction by which each target update moves the target networks towards the critics; 1 copies them."""
    batch_size: int = Field(default=64, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """Transitions per update."""
    learning_starts: int = Field(default=20_000, ge=0, json_schema_extra=base.LEARNING)
    """Environment steps with random actions before the first update."""
    policy_lr: float = Field(default=3e-4, gt=0, lt=1, json_schema_extra=base.LEARNING)
    """The learning rate of the actor; 1e-4 to 5e-4 are usual."""
    q_lr: float = Field(default=3e-4, gt=0, lt=1, json_schema_extra=base.LEARNING)
    """The learning rate of the critics and of the entropy coefficient; 1e-4 to 5e-4 are usual."""
    update_frequency: int = Field(default=4, ge=1, le=1_000_000, json_schema_extra=base.LEARNING)
    """Steps between updates."""
    target_network_frequency: int = Field(default=8_000, ge=1, json_schema_extra=base.LEARNING)
    """Environment steps between updates of the target networks."""
    alpha: float = Field(default=0.2, ge=0, le=100, json_schema_extra=base.LEARNING)
    """The entropy coefficient, if it is not tuned."""
    autotune: bool = Field(default=True, json_schema_extra=base.LEARNING)
    """Whether the entropy coefficient is tuned to reach the target entropy."""
    target_entropy_scale: float = Field(default=0.89, ge=0, le=1, json_schema_extra=base.LEARNING)
    """The target entropy as a fraction of a uniform policy's entropy; lower makes the policy more deterministic."""

    @property
    def buffer_capacity(self) -> int:
        """The capacity that is allocated: no more than the run's number of steps."""
        return min(self.buffer_size, self.total_timesteps)


class Agent:
    """An actor and two critics, each with three convolutions, a fully connected layer and one output per action."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES) -> None:
        self.action_count = action_count
        one = {**trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes), **layer_shapes("head", action_count, sizes.hidden)}
        self.shapes: Shapes = {f"{network}.{name}": shape for network in HEADS for name, shape in one.items()}
        self.shapes["log_alpha"] = (1,)
        self.parameters: dict[str, Array] = {}

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize with He-normal weights and zero biases."""
        for name, shape in self.shapes.items():
            self.parameters[name] = np.zeros(shape, np.float32)
            if name.endswith(".weight"):
                rng.standard_normal(dtype=np.float32, out=self.parameters[name])
                self.parameters[name] *= np.float32(math.sqrt(2 / math.prod(shape[1:])))

    def critics(self, parameters: Mapping[str, Array]) -> dict[str, Array]:
        return {name: part for name, part in parameters.items() if name.startswith("qf")}

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys with its network names as prefixes, in torch's layout."""
        return {_cleanrl_key(name): part for name, part in self.parameters.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.parameters = copy_checked(self.shapes, {name: state[_cleanrl_key(name)] for name in self.shapes})


def _cleanrl_key(name: str) -> str:
    """Return CleanRL's name of a parameter."""
    network, _, rest = name.partition(".")
    rest = rest.replace(HIDDEN_LAYER, "fc1").replace("network.", "conv.").replace("head.", f"{HEADS.get(network)}.")
    return f"{network}.{rest}" if rest else network


def _learner(
    config: Config, agent: Agent, targets: Mapping[str, Array], replay: FrameReplay
) -> tuple[DiscreteSacLearner, ImageInferenceStep]:
    """Return the learner, and the function from images to action logits."""
    from cleanrl_worker.torch_backend import TorchContext
    from cleanrl_worker.torch_discrete_sac import DiscreteSacLearner
    from cleanrl_worker.torch_replay import ReplayFeed, make_inference_step

    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, threads=devices.thread_count(),
        cuda_graphs=config.cuda_graphs, compiles=config.compile, seed=config.seed,
    )  # fmt: skip
    feed = ReplayFeed(replay, config.batch_size, FRAME_STACK + 1, compute)
    learner = DiscreteSacLearner(agent.parameters, targets, feed, config, compute)
    return learner, make_inference_step(replay, agent.action_count, learner.actor, compute)


# --- training


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_atari_env(NAME, env)
    size_bytes = FrameReplay.size_bytes(config.buffer_capacity, (FRAME_SIZE_PX, FRAME_SIZE_PX))
    check_memory(NAME, config.buffer_capacity, size_bytes)
    return {
        "observations": [FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX],
        "actions": actions,
        "parameters": parameter_count(Agent(actions).shapes) - 1,
        "replay_bytes": size_bytes,
        "backend": "torch",
    }


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    games = AtariEnvs(config.env_id, 1, config.seed, run.frames, settings=config.env_settings)
    try:
        _train(config, run, resume, games)
    finally:
        games.close()


def _train(config: Config, run: Run, resume: Checkpoint | None, games: AtariEnvs) -> None:
    action_space: Any = games.action_space
    action_count, frequency = int(action_space.n), config.update_frequency
    shape = {"env_id": config.env_id, "actions": action_count, "autotune": config.autotune}
    rng = np.random.default_rng(config.seed)
    agent = Agent(action_count, SIZES)
    replay = FrameReplay(config.buffer_capacity, 1, (FRAME_SIZE_PX, FRAME_SIZE_PX), FRAME_STACK, config.seed)
    replay.enable_block_files(run, config.checkpoint_replay_mb)
    observations = np.zeros((1, *games.shape), np.uint8)
    latest_frames = observations[:, -1]
    actions = np.zeros((frequency, 1), np.int64)
    rewards = np.zeros((frequency, 1))
    learning_starts = config.learning_starts

    if resume is None:
        global_step = 0
        agent.initialize(rng)
        learner, compute_logits = _learner(config, agent, agent.critics(agent.parameters), replay)
        games.start()
        games.observe(observations)
        replay.start(latest_frames)
    else:
        base.check_resumable(NAME, shape, resume)
        global_step = resume.facts["global_step"]
        if global_step + 1 > config.total_timesteps:
            return
        agent.load_state_dict(resume.weights)
        targets = select_by_prefix("target.", resume.arrays)
        learner, compute_logits = _learner(config, agent, targets, replay)
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
        base.check_async_losses(NAME, run, global_step, frequency, learner)
        agent.parameters = learner.arrays()
        arrays, environment_facts = games.checkpoint_state()
        replay_arrays, replay_facts = replay.checkpoint_state(config.checkpoint_replay_mb)
        base.save_checkpoint(
            NAME,
            run,
            global_step,
            weights=agent.state_dict(),
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
    while global_step < config.total_timesteps and not run.stop_requested:
        # Act until the next update. The argmax of logits plus Gumbel noise is a sample of their softmax distribution.
        start_step = global_step
        step_count = min(frequency - start_step % frequency, config.total_timesteps - start_step)
        noise = -np.log(base.sample_exponentials(rng, (step_count, action_count)))
        for t in range(step_count):
            is_random = global_step < config.learning_starts
            actions[t] = (noise[t] if is_random else compute_logits(observations)[0] + noise[t]).argmax()
            global_step += 1
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

        # Update. If target updates were due between two updates, they are done first, combined into one.
        if global_step > learning_starts:
            target_interval = config.target_network_frequency
            is_target_due = global_step % target_interval == 0
            missed_updates = (
                global_step // target_interval - max(start_step, learning_starts) // target_interval - is_target_due
            )
            if missed_updates > 0:
                learner.update_target(1 - (1 - config.tau) ** missed_updates)
            if global_step % frequency == 0:
                learner.update(replay)
                # Report.
                if global_step // REPORT_EVERY > start_step // REPORT_EVERY:
                    base.check_async_losses(NAME, run, global_step, frequency, learner)
                    losses = {f"losses/{name}": value for name, value in learner.losses().items()}
                    sps = int((global_step - started_step) / (time.time() - started_at))
                    run.scalars(global_step, {**losses, "charts/SPS": sps})
            if is_target_due:
                learner.update_target(config.tau)
        if run.checkpoint_due(global_step):
            save()
            saved_step = global_step
    if saved_step != global_step:
        save()


class ImagePolicy:
    """Acts on images [rows, 4, 84, 84] with a checkpoint's weights; needs torch."""

    def __init__(self, agent: Agent, first_action: int) -> None:
        import torch

        from cleanrl_worker.torch_conv import as_tensors
        from cleanrl_worker.torch_discrete_sac import DiscreteSacNetwork

        torch.set_num_threads(devices.thread_count())
        self._actor = DiscreteSacNetwork(as_tensors(agent.parameters, torch.device("cpu"), is_learned=False), "actor")
        self._first_action = first_action

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the most likely actions if `deterministic`, else samples."""
        import torch

        from cleanrl_worker.torch_conv import channels_last

        if observations.shape[1:] != (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX):
            raise ValueError(
                f"observations are {observations.shape[1:]}; expected {(FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)}"
            )
        with torch.no_grad():
            logits = self._actor(channels_last(torch.as_tensor(observations))).numpy()
        scores = logits if deterministic else logits + rng.gumbel(size=logits.shape)
        return np.asarray(scores.argmax(1) + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    weights = checkpoint.weights
    first, second, third, hidden = (
        len(weights[f"actor.{name}.bias"]) for name in ("conv.0", "conv.2", "conv.4", "fc1")
    )
    agent = Agent(checkpoint.facts["shape"]["actions"], ConvNetworkSizes((first, second, third), hidden))
    agent.load_state_dict(weights)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return ImagePolicy(_load_agent(checkpoint), checkpoint.facts["first_action"])


def state_dict_of(checkpoint: Checkpoint) -> tuple[dict[str, Array], ...]:
    """Return actor and critics as CleanRL's TD3 script saves them; its SAC scripts save no model."""
    state = _load_agent(checkpoint).state_dict()
    return tuple(select_by_prefix(f"{name}.", state) for name in HEADS)
