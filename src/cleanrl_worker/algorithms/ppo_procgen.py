"""Proximal policy optimization for Procgen games run by envpool.

Each episode of a Procgen game is another generated level, so the agent has to learn what all levels share. It sees one
color frame through the residual convolutions of IMPALA, collects a rollout from many games, and updates the policy on
it for a few epochs. Rewards are divided by the running standard deviation of their discounted sum. Use it with many
games and a GPU.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Games: Cobbe, Hesse, Hilton, Schulman, "Leveraging Procedural Generation to Benchmark Reinforcement Learning",
arXiv:1912.01588 (2019). Network: Espeholt et al., "IMPALA", arXiv:1802.01561 (2018).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base, ppo_atari
from cleanrl_worker.algorithms.settings import RUN, EnvpoolConfig, PpoConfig
from cleanrl_worker.environments.normalization import RewardNormalizer
from cleanrl_worker.environments.procgen_games import (
    COLORS,
    FRAME_SIDE_PX,
    ProcgenEnvs,
    check_procgen_env,
    find_procgen_task,
    make_procgen_env,
)
from cleanrl_worker.evaluation.policies import CategoricalPolicy, image_network
from cleanrl_worker.learners import devices
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import (
    IMPALA_LAYERS,
    ConvAgent,
    ConvNetworkSizes,
    impala_shapes,
    infer_sizes,
    layer_shapes,
    orthogonal_weights,
    uniform_weights,
)
from cleanrl_worker.loops.on_policy_frames import Columns, FramePpoTraining, describe_run
from mosaic.contracts.payload import EnvId

if TYPE_CHECKING:
    from torch import Tensor

    from cleanrl_worker.learners.torch_conv import Weights
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ppo_procgen"
NETWORK = Architecture((256,), "relu")
SIZES = ConvNetworkSizes((16, 32, 32), NETWORK.hidden)
CONV_LAYERS = tuple(f"{name}.conv" for name in IMPALA_LAYERS)
make_env = make_procgen_env
"""Makes the environment that `check` gets."""


class Config(EnvpoolConfig, PpoConfig, defaults={
        "exp_name": NAME, "learning_rate": 5e-4, "num_envs": 64, "num_steps": 256, "anneal_lr": False, "gamma": 0.999,
        "num_minibatches": 8, "update_epochs": 3, **NETWORK.settings,
    }):  # fmt: skip
    """Settings of PPO for Procgen games."""

    env_id: EnvId = Field(default="starpilot", json_schema_extra=RUN)
    """The game to train in, by its name (`starpilot`: easy levels) or its id in envpool (`StarpilotHard-v0`)."""
    total_timesteps: int = Field(default=25_000_000, gt=0, json_schema_extra=RUN)
    """Steps to train for, summed over all games."""
    takes_network: ClassVar[bool] = False


class Agent(ConvAgent):
    """Actor and critic on a shared IMPALA network."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES) -> None:
        self.trunk = impala_shapes(COLORS, FRAME_SIDE_PX, sizes)
        self.heads = {
            **layer_shapes("actor", action_count, sizes.hidden[-1]),
            **layer_shapes("critic", 1, sizes.hidden[-1]),
        }
        super().__init__(self.trunk | self.heads)

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize as torch does, the heads orthogonally; a small actor makes the first policy nearly uniform."""
        heads = orthogonal_weights(self.heads, rng, {"actor": 0.01, "critic": 1.0})
        self.parameters = {**uniform_weights(self.trunk, rng), **heads}


def outputs(weights: Weights, images: Tensor, architecture: Architecture = NETWORK) -> Tensor:
    """Return the actor's logits followed by the critic's value, [rows, actions + 1]."""
    from cleanrl_worker.learners.torch_conv import actor_critic_heads, impala_features

    return actor_critic_heads(weights, impala_features(weights, images, architecture))


loss = functools.partial(ppo_atari.loss, forward=outputs)
make_learner = functools.partial(ppo_atari.make_learner, forward=outputs)


class ProcgenTraining(FramePpoTraining):
    """Divides rewards by the running standard deviation of their discounted sum."""

    def __init__(self, config: Any, run: Run, games: ProcgenEnvs, agent: ConvAgent) -> None:
        super().__init__(config, run, games, agent)
        self._normalize_rewards = RewardNormalizer(config.num_envs, config.gamma)

    def estimate(self, rewards: Array) -> Columns | None:
        # The end of a game restarts its sum after the step; the normalizer restarts one before a step.
        starts = np.concatenate([np.zeros_like(self.dones[:1]), self.dones[:-1]])
        normalized = self._normalize_rewards(rewards, starts)
        self._normalize_rewards.discounted_sums[self.dones[-1]] = 0.0
        return super().estimate(normalized)

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, facts = super().own_state()
        return arrays, {**facts, "rewards": self._normalize_rewards.facts()}

    def restore_own_state(self, resume: Checkpoint, is_exact: bool) -> None:
        super().restore_own_state(resume, is_exact)
        self._normalize_rewards.restore(resume.facts["rewards"])


class Training(ProcgenTraining):
    name = NAME
    make_learner = staticmethod(make_learner)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_procgen_env(NAME, env)
    agent = Agent(actions, SIZES.with_architecture(config.architecture))
    return describe_run(agent, actions, COLORS, FRAME_SIDE_PX)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    task = find_procgen_task(config.env_id)
    games = ProcgenEnvs(task, config.num_envs, config.seed, devices.thread_count(), run.frames)
    with closing(games):
        agent = Agent(games.action_count, SIZES.with_architecture(config.architecture))
        Training(config, run, games, agent).train(resume)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    base.check_checkpoint_algorithm(NAME, checkpoint)
    return frame_policy(state_dict_of(checkpoint), checkpoint)


def frame_policy(state: Mapping[str, Array], checkpoint: Checkpoint) -> CategoricalPolicy:
    import torch

    from cleanrl_worker.learners.torch_conv import as_tensors

    weights = as_tensors(state, torch.device("cpu"), is_learned=False)
    forward = functools.partial(outputs, weights, architecture=base.saved_architecture(checkpoint, NETWORK))
    network = image_network(forward, COLORS, FRAME_SIDE_PX)
    return CategoricalPolicy(lambda images: network(images)[:, :-1], checkpoint.facts["first_action"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the agent in the order of CleanRL's script, which saves none."""
    sizes = infer_sizes(checkpoint.weights, base.saved_architecture(checkpoint, NETWORK), CONV_LAYERS)
    agent = Agent(len(checkpoint.weights["actor.bias"]), sizes)
    agent.load_state_dict(checkpoint.weights)
    return agent.state_dict()
