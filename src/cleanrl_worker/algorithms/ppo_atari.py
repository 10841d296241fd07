"""Proximal policy optimization for Atari games.

The agent sees the latest four frames through three convolutions, collects a rollout from several games, then updates
its policy on it for a few epochs, with a clipped loss that keeps the new policy close to the old one. It is a good
first choice for Atari: stable, fast in wall-clock time and robust to its settings. dqn_atari needs fewer game steps but
more computation. If four frames do not contain enough information, ppo_atari_lstm adds memory.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Details: Huang et al., "The 37 Implementation Details of Proximal Policy Optimization", ICLR Blog Track (2022).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker import devices, ppo_kernels
from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import AtariConfig, PpoConfig
from cleanrl_worker.atari_envs import AtariEnvs, check_atari_env
from cleanrl_worker.conv_network import (
    ConvNetworkSizes,
    copy_checked,
    infer_sizes,
    layer_shapes,
    orthogonal_weights,
    parameter_count,
    trunk_shapes,
)
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK
from mosaic.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from cleanrl_worker.torch_conv import PpoImageLearner
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "ppo_atari"
SIZES = ConvNetworkSizes()


class Config(AtariConfig, PpoConfig, defaults={"exp_name": NAME, "num_envs": 8, "clip_coef": 0.1}):
    """Settings of PPO for Atari games."""


class Agent:
    """Actor and critic on a shared trunk of three convolutions and a fully connected layer."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES) -> None:
        self.shapes = {
            **trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes),
            **layer_shapes("actor", action_count, sizes.hidden),
            **layer_shapes("critic", 1, sizes.hidden),
        }
        self.parameters: dict[str, Array] = {}

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize orthogonally; a small last actor layer makes the first policy nearly uniform."""
        self.parameters = orthogonal_weights(self.shapes, rng, {"actor": 0.01, "critic": 1.0})

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return dict(self.parameters)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.parameters = copy_checked(self.shapes, state)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_atari_env(NAME, env)
    return {
        "observations": [FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX],
        "actions": actions,
        "parameters": parameter_count(Agent(actions).shapes),
        "backend": "torch",
    }


def _learner(config: Config, agent: Agent, shape: tuple[int, ...]) -> PpoImageLearner:
    from cleanrl_worker.torch_backend import TorchContext
    from cleanrl_worker.torch_conv import PpoImageLearner

    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, threads=devices.thread_count(),
        cuda_graphs=config.cuda_graphs, compiles=config.compile, seed=config.seed,
    )  # fmt: skip
    return PpoImageLearner(agent.parameters, shape, config, compute)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    games = AtariEnvs(config.env_id, config.num_envs, config.seed, run.frames, settings=config.env_settings)
    try:
        _train(config, run, resume, games)
    finally:
        games.close()


def _train(config: Config, run: Run, resume: Checkpoint | None, games: AtariEnvs) -> None:
    action_space: Any = games.action_space
    action_count = int(action_space.n)
    steps, num_envs, total = config.num_steps, config.num_envs, config.batch_size
    shape = {"env_id": config.env_id, "actions": action_count, "num_envs": num_envs, "num_steps": steps}
    rng = np.random.default_rng(config.seed)
    agent = Agent(action_count, SIZES)

    observations = np.zeros((steps + 1, num_envs, *games.shape), np.uint8)
    outputs = np.zeros((steps + 1, num_envs, action_count + 1), np.float32)
    actions = np.zeros((steps, num_envs), np.int64)
    dones = np.zeros((steps, num_envs), np.bool_)

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

        # Collect a rollout.
        observations[0] = observations[-1]
        dones[...] = False
        truncated: list[tuple[int, int, Array]] = []
        # The argmax of logits plus Gumbel noise is a sample of their softmax distribution.
        noise = base.sample_exponentials(rng, (steps, num_envs, action_count))
        np.log(noise, out=noise)
        for t in range(steps):
            outputs[t] = learner.act(observations[t])
            actions[t] = (outputs[t, :, :-1] - noise[t]).argmax(1)
            global_step += num_envs
            for episode_end in games.step(actions[t].tolist(), observations[t + 1]):
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
            run.update(global_step)
            if run.stop_requested:
                break
        if run.stop_requested:
            break
        rewards = games.finish_rollout(actions)
        base.abort_if_rewards_not_finite(NAME, run, rewards, global_step - total)

        # Estimate advantages. A truncated game is bootstrapped with the value of its final observation; otherwise the
        # agent would learn that reaching the time limit is as bad as failing.
        outputs[-1] = learner.act(observations[-1])
        values = outputs[:, :, -1]
        if truncated:
            final_values = learner.values(np.array([observation for _, _, observation in truncated]))
            for (t, env, _), value in zip(truncated, final_values.tolist(), strict=True):
                rewards[t, env] += config.gamma * value
        advantages = ppo_kernels.gae_advantages(rewards, values, dones, config.gamma, config.gae_lambda)
        returns = advantages + values[:-1]
        logits = outputs[:-1, :, :-1].reshape(total, action_count)
        logits = logits - logits.max(1, keepdims=True)
        action_logits = logits[np.arange(total), actions.reshape(total)]

        # Update.
        learner.load_rollout(
            learning_rate,
            observations[:-1].reshape(total, *games.shape),
            actions=actions.reshape(total),
            log_probs=action_logits - np.log(np.exp(logits).sum(1)),
            advantages=advantages.reshape(total),
            returns=returns.reshape(total),
            values=values[:-1].reshape(total),
        )
        if not _run_update_epochs(config, run, learner, rng, global_step):
            break

        # Report.
        metrics, is_finite = learner.losses()
        losses = {f"losses/{name}": value for name, value in metrics.items()}
        base.abort_if_not_finite(NAME, run, global_step, losses, is_finite)
        variance = float(returns.var())
        if variance > 0:
            losses["losses/explained_variance"] = 1 - float((returns - values[:-1]).var()) / variance
        sps = int((global_step - started_step) / (time.time() - started_at))
        run.scalars(global_step, {"charts/learning_rate": learning_rate, **losses, "charts/SPS": sps})
        latest_state = state()
        if run.checkpoint_due(global_step):
            base.save_checkpoint(NAME, run, **latest_state)
            saved_step = global_step
    if saved_step != latest_state["step"]:
        base.save_checkpoint(NAME, run, **latest_state)


def _run_update_epochs(
    config: Config, run: Run, learner: PpoImageLearner, rng: np.random.Generator, global_step: int
) -> bool:
    """Run the epochs of an update; return False if the run was asked to stop before their end."""
    is_end = global_step + config.batch_size > config.total_timesteps
    for _ in range(config.update_epochs):
        for rows in rng.permutation(config.batch_size).reshape(config.num_minibatches, -1):
            learner.update(rows)
            run.update(global_step)
            if run.stop_requested and not is_end:
                return False
        if config.target_kl is not None and learner.losses()[0]["approx_kl"] > config.target_kl:
            break
    return True


class ImagePolicy:
    """Acts on images [rows, 4, 84, 84] with a checkpoint's weights; needs torch."""

    def __init__(self, state: Mapping[str, Array], first_action: int) -> None:
        import torch

        from cleanrl_worker.torch_conv import as_tensors

        torch.set_num_threads(devices.thread_count())
        agent = Agent(len(state["actor.bias"]), infer_sizes(state))
        agent.load_state_dict(state)
        self._weights = as_tensors(agent.parameters, torch.device("cpu"), is_learned=False)
        self._first_action = first_action

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the most likely actions if `deterministic`, else samples."""
        import torch

        from cleanrl_worker.torch_conv import actor_critic_heads, channels_last, conv_features

        if observations.shape[1:] != (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX):
            raise ValueError(
                f"observations are {observations.shape[1:]}; expected {(FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)}"
            )
        with torch.no_grad():
            images = channels_last(torch.as_tensor(observations))
            logits = actor_critic_heads(self._weights, conv_features(self._weights, images))[:, :-1].numpy()
        scores = logits if deterministic else logits + rng.gumbel(size=logits.shape)
        return np.asarray(scores.argmax(1) + self._first_action)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    base.check_checkpoint_algorithm(NAME, checkpoint)
    return ImagePolicy(checkpoint.weights, checkpoint.facts["first_action"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order."""
    agent = Agent(len(checkpoint.weights["actor.bias"]), infer_sizes(checkpoint.weights))
    agent.load_state_dict(checkpoint.weights)
    return agent.state_dict()
