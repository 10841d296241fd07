"""Proximal policy optimization with random network distillation for Atari games run by envpool.

For games with very sparse rewards, the agent gets an intrinsic reward for new observations. A fixed random network
computes features of each frame and a second network learns to predict them; a large prediction error means a new frame.
PPO maximizes the game's rewards and the intrinsic rewards with a value head each: extrinsic episodes end with a life,
intrinsic ones never. Use it for games such as Montezuma's Revenge, with many parallel games and a GPU. If random play
finds rewards, ppo_atari_envpool is cheaper.

Paper: Burda, Edwards, Storkey, Klimov, "Exploration by Random Network Distillation", arXiv:1810.12894 (2018).
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
from pydantic import Field

from cleanrl_worker import devices, ppo_kernels
from cleanrl_worker.algorithms import base, ppo_atari
from cleanrl_worker.algorithms.settings import LEARNING, ROLLOUT, RUN, EnvpoolConfig
from cleanrl_worker.conv_network import (
    ConvNetworkSizes,
    Shapes,
    copy_checked,
    layer_shapes,
    orthogonal_weights,
    parameter_count,
    trunk_shapes,
)
from cleanrl_worker.envpool_envs import (
    STICKY_ACTION_PROBABILITY,
    EnvpoolEnvs,
    check_envpool_env,
    find_task,
    make_envpool_env,
)
from cleanrl_worker.normalization import FrameMoments, IntrinsicRewardScaler
from mosaic.contracts.payload import EnvId
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from cleanrl_worker.torch_rnd import RndLearner
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "ppo_rnd_envpool"
SIZES = ConvNetworkSizes(hidden=256)
HEAD_UNITS = 448
"""Units of the hidden layers of the heads."""
FEATURES = 512
"""The number of features of predictor and target."""
STICKINESS = STICKY_ACTION_PROBABILITY
"""The probability of repeating the previous action, unless the game's id determines it."""
RECENT_EPISODES = 20
"""The number of games over which the average return is reported."""
REPORTED_LOSSES = ("value_loss", "policy_loss", "entropy", "old_approx_kl", "fwd_loss", "approx_kl")
make_env = functools.partial(make_envpool_env, repeat_action_probability=STICKINESS)
"""Makes the environment that `check` gets."""


class Config(EnvpoolConfig, ppo_atari.Config, defaults={
        "total_timesteps": 2_000_000_000, "exp_name": NAME, "num_envs": 128, "ent_coef": 0.001
    }):  # fmt: skip
    """Settings of PPO with random network distillation."""

    env_id: EnvId = Field(default="MontezumaRevenge-v5", json_schema_extra=RUN)
    """The game to train in, by its id in envpool (`MontezumaRevenge-v5`) or in Gymnasium."""
    learning_rate: float = Field(default=1e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of Adam; 5e-5 to 5e-4 are usual."""
    gamma: float = Field(default=0.999, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The discount factor of the game's rewards."""
    clip_vloss: bool = Field(default=True, json_schema_extra=LEARNING)
    """Whether the loss of the extrinsic value is clipped in the same way."""
    vf_coef: float = Field(default=0.5, ge=0, le=100, json_schema_extra=LEARNING)
    """The weight of both value losses."""
    update_proportion: float = Field(default=0.25, gt=0, le=1, json_schema_extra=LEARNING)
    """The fraction of a minibatch that the predictor is trained on; with many games less, or it learns too fast."""
    int_coef: float = Field(default=1.0, ge=0, le=1000, json_schema_extra=ROLLOUT)
    """The weight of the intrinsic advantages."""
    ext_coef: float = Field(default=2.0, ge=0, le=1000, json_schema_extra=ROLLOUT)
    """The weight of the extrinsic advantages."""
    int_gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The discount factor of intrinsic rewards."""
    num_iterations_obs_norm_init: int = Field(default=50, ge=1, le=100_000, json_schema_extra=ROLLOUT)
    """Rollouts with random actions at the start, to initialize the normalization of frames."""


class Agent:
    """An actor and two critics on shared convolutions, the fixed target network, and its predictor."""

    def __init__(
        self, action_count: int, sizes: ConvNetworkSizes = SIZES, wide: int = HEAD_UNITS, features: int = FEATURES
    ) -> None:
        self.policy_shapes: Shapes = {
            **trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes),
            **layer_shapes("network.9", wide, sizes.hidden),
            **layer_shapes("extra_layer.0", wide, wide),
            **layer_shapes("actor.0", wide, wide),
            **layer_shapes("actor.2", action_count, wide),
            **layer_shapes("critic_ext", 1, wide),
            **layer_shapes("critic_int", 1, wide),
        }
        """The acting network's shapes under CleanRL's names."""
        sight = {
            name.removeprefix("network."): shape
            for name, shape in trunk_shapes(1, FRAME_SIZE_PX, ConvNetworkSizes(sizes.channels, features)).items()
        }
        self.rnd_shapes: Shapes = {
            **{f"predictor.{name}": shape for name, shape in sight.items()},
            **layer_shapes("predictor.9", features, features),
            **layer_shapes("predictor.11", features, features),
            **{f"target.{name}": shape for name, shape in sight.items()},
        }
        self.shapes = self.policy_shapes | self.rnd_shapes
        self.parameters: dict[str, Array] = {}

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize orthogonally; small heads make the first policy nearly uniform and the first values small."""
        gains = {"extra_layer": 0.1, "actor": 0.01, "critic_ext": 0.01, "critic_int": 0.01}
        self.parameters = orthogonal_weights(self.shapes, rng, gains)

    def state_dict(self) -> dict[str, Array]:
        """Return the acting network's weights under CleanRL's keys, in torch's layout."""
        return {name: self.parameters[name] for name in self.policy_shapes}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load the acting network, and predictor and target if they are present."""
        is_whole = any(name in state for name in self.rnd_shapes)
        self.parameters = copy_checked(self.shapes if is_whole else self.policy_shapes, state)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_envpool_env(NAME, env)
    return {
        "observations": [FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX],
        "actions": actions,
        "parameters": parameter_count(Agent(actions).shapes),
        "backend": "torch",
    }


def _learner(config: Config, agent: Agent, shape: tuple[int, ...]) -> RndLearner:
    from cleanrl_worker.torch_backend import TorchContext
    from cleanrl_worker.torch_rnd import RndLearner

    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, threads=devices.thread_count(),
        cuda_graphs=config.cuda_graphs, compiles=config.compile, seed=config.seed,
    )  # fmt: skip
    return RndLearner(agent.parameters, shape, config, compute)


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
    agent = Agent(action_count, SIZES, HEAD_UNITS, FEATURES)
    frame_moments = FrameMoments(FRAME_SIZE_PX, FRAME_SIZE_PX)
    reward_scaler = IntrinsicRewardScaler(num_envs, config.int_gamma)

    observations = np.zeros((steps + 1, num_envs, *games.shape), np.uint8)
    next_frames = np.zeros((steps, num_envs, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
    outputs = np.zeros((steps + 1, num_envs, action_count + 2), np.float32)
    intrinsic_rewards = np.zeros((steps, num_envs), np.float32)
    actions = np.zeros((steps, num_envs), np.int64)
    dones = np.zeros((steps, num_envs), np.bool_)
    no_dones = np.zeros((steps, num_envs), np.bool_)
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
        frame_moments.restore("looks", resume.arrays, resume.facts["looks"])
        reward_scaler.restore(resume.arrays, resume.facts["surprises"])
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
            "arrays": {
                **arrays,
                **learner.optimizer_state(),
                **frame_moments.arrays("looks"),
                **reward_scaler.arrays(),
            },
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
                "looks": frame_moments.count,
                "surprises": reward_scaler.moments.count,
                "recent": list(recent),
                "environments": environment_facts,
            },
        }

    saved_step = -1 if resume is None else global_step
    # A rollout and its update take long. A run that is stopped meanwhile resumes from before them.
    latest_state = state()
    if global_step == 0 and _init_observation_normalizer(config, run, games, frame_moments, rng, observations[-1]):
        latest_state = state()
    learner.set_normalization(frame_moments.mean, frame_moments.variance)
    started_at, started_step = time.time(), global_step
    while global_step + total <= config.total_timesteps and not run.stop_requested:
        iteration += 1
        if config.anneal_lr:
            learning_rate = config.learning_rate * (1 - (iteration - 1) / config.num_iterations)

        # Collect a rollout.
        observations[0] = observations[-1]
        dones[...] = False
        truncated: list[tuple[int, int, Array]] = []
        finished: list[tuple[int, int, int]] = []
        # The argmax of logits plus Gumbel noise is a sample of their softmax distribution.
        noise = base.sample_exponentials(rng, (steps, num_envs, action_count))
        np.log(noise, out=noise)
        for t in range(steps):
            outputs[t] = learner.act(observations[t])
            actions[t] = (outputs[t, :, :-2] - noise[t]).argmax(1)
            global_step += num_envs
            episode_ends = games.step(actions[t], observations[t + 1])
            next_frames[t] = observations[t + 1, :, -1]
            for episode_end in episode_ends:
                dones[t, episode_end.env] = True
                next_frames[t, episode_end.env] = episode_end.observation[-1]
                if not episode_end.is_terminal:
                    truncated.append((t, episode_end.env, episode_end.observation))
                if episode_end.is_full_episode:
                    run.episode(
                        env=episode_end.env,
                        step=global_step,
                        episodic_return=episode_end.episodic_return,
                        length=episode_end.length,
                    )
                    finished.append((t, episode_end.env, global_step))
                    recent.append(episode_end.episodic_return)
                    run.scalar("charts/avg_episodic_return", fmean(recent), global_step)
            run.update(global_step)
            if run.stop_requested:
                break
        if run.stop_requested:
            break
        rewards = games.finish_rollout(actions)
        base.abort_if_rewards_not_finite(NAME, run, rewards, global_step - total)

        # Compute the intrinsic rewards.
        for t in range(steps):
            intrinsic_rewards[t] = learner.intrinsic_rewards(next_frames[t])
            run.update(global_step)
            if run.stop_requested:
                break
        if run.stop_requested:
            break
        for t, env, step in finished:
            run.scalar("charts/episode_curiosity_reward", intrinsic_rewards[t, env], step)
        scaled_intrinsic = reward_scaler(intrinsic_rewards)

        # Estimate advantages. A truncated game is bootstrapped with the value of its final observation; otherwise the
        # agent would learn that reaching the time limit is as bad as failing. Intrinsic returns never end: otherwise
        # the agent would avoid losing a life instead of exploring.
        outputs[-1] = learner.act(observations[-1])
        values, int_values = outputs[:, :, -2], outputs[:, :, -1]
        if truncated:
            final_values = learner.values(np.array([observation for _, _, observation in truncated]))
            for (t, env, _), value in zip(truncated, final_values.tolist(), strict=True):
                rewards[t, env] += config.gamma * value
        advantages = ppo_kernels.gae_advantages(rewards, values, dones, config.gamma, config.gae_lambda)
        int_advantages = ppo_kernels.gae_advantages(
            scaled_intrinsic, int_values, no_dones, config.int_gamma, config.gae_lambda
        )
        logits = outputs[:-1, :, :-2].reshape(total, action_count)
        logits = logits - logits.max(1, keepdims=True)
        action_logits = logits[np.arange(total), actions.reshape(total)]

        # Update.
        frame_moments.add_frames(next_frames.reshape(total, FRAME_SIZE_PX, FRAME_SIZE_PX))
        learner.set_normalization(frame_moments.mean, frame_moments.variance)
        learner.load_rollout(
            learning_rate,
            observations[:-1].reshape(total, *games.shape),
            next_frames=next_frames.reshape(total, FRAME_SIZE_PX, FRAME_SIZE_PX),
            actions=actions.reshape(total),
            log_probs=action_logits - np.log(np.exp(logits).sum(1)),
            advantages=(config.ext_coef * advantages + config.int_coef * int_advantages).reshape(total),
            returns=(advantages + values[:-1]).reshape(total),
            values=values[:-1].reshape(total),
            int_returns=(int_advantages + int_values[:-1]).reshape(total),
        )
        if not _run_update_epochs(config, run, learner, rng, global_step):
            break

        # Report.
        metrics, is_finite = learner.losses()
        losses = {f"losses/{name}": metrics[name] for name in REPORTED_LOSSES}
        base.abort_if_not_finite(NAME, run, global_step, losses, is_finite)
        sps = int((global_step - started_step) / (time.time() - started_at))
        run.scalars(global_step, {"charts/learning_rate": learning_rate, **losses, "charts/SPS": sps})
        latest_state = state()
        if run.checkpoint_due(global_step):
            base.save_checkpoint(NAME, run, **latest_state)
            saved_step = global_step
    if saved_step != latest_state["step"]:
        base.save_checkpoint(NAME, run, **latest_state)


def _init_observation_normalizer(
    config: Config, run: Run, games: EnvpoolEnvs, frame_moments: FrameMoments, rng: np.random.Generator, into: Array
) -> bool:
    """Initialize the frame statistics with random actions; return False if the run was asked to stop meanwhile."""
    action_space: Any = games.action_space
    frames = np.zeros((config.num_steps, config.num_envs, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
    for _ in range(config.num_iterations_obs_norm_init):
        for t in range(config.num_steps):
            games.step(rng.integers(int(action_space.n), size=config.num_envs), into)
            frames[t] = into[:, -1]
            run.update(0)
            if run.stop_requested:
                return False
        games.finish_rollout(np.zeros((config.num_steps, config.num_envs), np.int64))
        frame_moments.add_frames(frames.reshape(config.batch_size, FRAME_SIZE_PX, FRAME_SIZE_PX))
    return True


def _run_update_epochs(
    config: Config, run: Run, learner: RndLearner, rng: np.random.Generator, global_step: int
) -> bool:
    """Run the epochs of an update; return False if the run was asked to stop before their end."""
    from cleanrl_worker.torch_rnd import TARGET_CHUNK_ROWS

    is_end = global_step + config.batch_size > config.total_timesteps
    for first_row in range(0, config.batch_size, TARGET_CHUNK_ROWS):
        learner.compute_target_features(first_row)
        run.update(global_step)
        if run.stop_requested and not is_end:
            return False
    for _ in range(config.update_epochs):
        for rows in rng.permutation(config.batch_size).reshape(config.num_minibatches, -1):
            predictor_mask = rng.random(config.minibatch_size, np.float32) < config.update_proportion
            learner.update(rows, predictor_mask)
            run.update(global_step)
            if run.stop_requested and not is_end:
                return False
        if config.target_kl is not None and learner.losses()[0]["approx_kl"] > config.target_kl:
            break
    return True


class RndPolicy:
    """Acts on images [rows, 4, 84, 84] with a checkpoint's weights; needs torch."""

    def __init__(self, agent: Agent, first_action: int) -> None:
        import torch

        from cleanrl_worker.torch_conv import as_tensors

        torch.set_num_threads(devices.thread_count())
        self._weights = as_tensors(agent.state_dict(), torch.device("cpu"), is_learned=False)
        self._first_action = first_action

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the most likely actions if `deterministic`, else samples."""
        import torch

        from cleanrl_worker.torch_conv import channels_last
        from cleanrl_worker.torch_rnd import rnd_heads

        if observations.shape[1:] != (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX):
            raise ValueError(
                f"observations are {observations.shape[1:]}; expected {(FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)}"
            )
        with torch.no_grad():
            logits = rnd_heads(self._weights, channels_last(torch.as_tensor(observations)))[:, :-2].numpy()
        scores = logits if deterministic else logits + rng.gumbel(size=logits.shape)
        return np.asarray(scores.argmax(1) + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    state = checkpoint.weights
    first, second, third = (len(state[f"network.{number}.bias"]) for number in (0, 2, 4))
    sizes = ConvNetworkSizes((first, second, third), len(state["network.7.bias"]))
    features = len(state["target.7.bias"]) if "target.7.bias" in state else FEATURES
    agent = Agent(len(state["actor.2.bias"]), sizes, len(state["network.9.bias"]), features)
    agent.load_state_dict(state)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return RndPolicy(_load_agent(checkpoint), checkpoint.facts["first_action"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order, if it saved one."""
    return _load_agent(checkpoint).state_dict()
