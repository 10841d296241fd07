"""Proximal policy optimization with an LSTM for Atari games.

Like ppo_atari, but the agent sees one frame at a time and has memory: an LSTM after the convolutions. It is for games
and variants in which the latest four frames do not contain enough information. Otherwise ppo_atari is simpler and
usually learns faster.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
LSTM: Hochreiter, Schmidhuber, "Long Short-Term Memory", Neural Computation 9 (1997).
Details: Huang et al., "The 37 Implementation Details of Proximal Policy Optimization", ICLR Blog Track (2022).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base, ppo_atari
from cleanrl_worker.algorithms.ppo import categorical_loss
from cleanrl_worker.algorithms.settings import LEARNING, SettingsConflict
from cleanrl_worker.environments.atari import AtariEnvs, check_atari_env
from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.learners import devices
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import (
    CONV_NETWORK,
    ConvAgent,
    ConvNetworkSizes,
    layer_shapes,
    orthogonal_weights,
    trunk_shapes,
)
from cleanrl_worker.learners.ppo_kernels import PpoLosses
from cleanrl_worker.learners.protocols import FramePpoSettings, PpoRolloutSettings
from cleanrl_worker.loops.on_policy_frames import Columns, FramePpoTraining, describe_run
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    from torch import Tensor

    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_conv import Weights
    from cleanrl_worker.learners.torch_recurrent import RecurrentLearner
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ppo_atari_lstm"
SIZES = ConvNetworkSizes()
INPUT_FRAMES = 1
"""Frames per observation of the network; the LSTM remembers earlier ones."""
LSTM_UNITS = 128
"""Units of the LSTM."""


class Config(ppo_atari.Config, defaults={"exp_name": NAME}):
    """Settings of PPO with an LSTM for Atari games."""

    num_minibatches: int = Field(default=4, ge=1, json_schema_extra=LEARNING)
    """Minibatches per rollout, each with all steps of some games; each is one gradient step."""

    def _validate_minibatches(self) -> None:
        if self.num_envs % self.num_minibatches:
            raise SettingsConflict(
                f"num_envs = {self.num_envs} games cannot be split into num_minibatches = {self.num_minibatches} "
                "equally",
                *("num_envs", "num_minibatches"),
            )
        super()._validate_minibatches()


class Agent(ConvAgent):
    """Actor and critic on a shared trunk of three convolutions, fully connected layers and an LSTM."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES, units: int = LSTM_UNITS) -> None:
        super().__init__(
            {
                **trunk_shapes(INPUT_FRAMES, FRAME_SIZE_PX, sizes),
                "lstm.weight_ih_l0": (4 * units, sizes.hidden[-1]),
                "lstm.weight_hh_l0": (4 * units, units),
                "lstm.bias_ih_l0": (4 * units,),
                "lstm.bias_hh_l0": (4 * units,),
                **layer_shapes("actor", action_count, units),
                **layer_shapes("critic", 1, units),
            }
        )

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize orthogonally; a small last actor layer makes the first policy nearly uniform."""
        self.parameters = orthogonal_weights(self.shapes, rng, {"lstm": 1.0, "actor": 0.01, "critic": 1.0})


def outputs(
    weights: Weights,
    images: Tensor,
    state: Tensor,
    continue_mask: Tensor,
    architecture: Architecture = CONV_NETWORK,
) -> tuple[Tensor, Tensor]:
    """Return the actor's logits followed by the critic's value, [steps × rows, actions + 1], and the LSTM's new state.

    Images [steps × rows, 84, 84, 1] are in the order of the steps. `continue_mask` [steps, rows] is 0 where an episode
    starts.
    """
    from cleanrl_worker.learners.torch_conv import actor_critic_heads, conv_features
    from cleanrl_worker.learners.torch_recurrent import lstm_forward

    features = conv_features(weights, images, architecture).view(*continue_mask.shape, -1)
    hidden, state = lstm_forward(weights, features, state, continue_mask)
    return actor_critic_heads(weights, hidden.flatten(0, 1)), state


def loss(weights: Weights, batch: Any, state: Tensor, config: FramePpoSettings) -> tuple[Tensor, PpoLosses]:
    """Return PPO's loss of all steps of some games; `state` is the LSTM's at the start of the rollout."""
    continue_mask = batch.continue_mask.view(-1, state.shape[1])
    result, _ = outputs(weights, batch.images, state, continue_mask, config.architecture)
    return categorical_loss(result[:, :-1], result[:, -1], batch, config)


def make_learner(
    arrays: Mapping[str, Array], shape: tuple[int, ...], config: PpoRolloutSettings, compute: TorchContext
) -> RecurrentLearner:
    from cleanrl_worker.learners.torch_recurrent import RecurrentLearner

    forward = functools.partial(outputs, architecture=config.architecture)
    return RecurrentLearner(arrays, shape, forward, functools.partial(loss, config=config), config, compute)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_atari_env(NAME, env)
    return describe_run(
        Agent(actions, SIZES.with_architecture(config.architecture, INPUT_FRAMES)), actions, INPUT_FRAMES
    )


class Training(FramePpoTraining):
    """PPO with memory: the LSTM's state is carried from step to step and reset where a new episode starts.

    A minibatch is all steps of some games, because gradients flow back through time.
    """

    name = NAME
    make_learner = staticmethod(make_learner)
    learner: RecurrentLearner

    def __init__(self, config: Config, run: Run, games: AtariEnvs, agent: Agent) -> None:
        super().__init__(config, run, games, agent)
        self._continue_mask = np.zeros((config.num_steps + 1, config.num_envs), np.float32)
        """0 where a new episode starts."""
        self._final_values: list[float] = []
        """The values of truncated games: computed at once, while the LSTM's state is theirs."""

    def begin_rollout(self) -> None:
        super().begin_rollout()
        self.learner.begin_rollout()
        self._continue_mask[0] = self._continue_mask[-1]
        self._final_values.clear()

    def act(self, t: int) -> None:
        self.learner.set_continue_mask(self._continue_mask[t])
        super().act(t)

    def after_step(self, t: int, episode_ends: Sequence[EpisodeEnd]) -> None:
        for end in episode_ends:
            if not end.is_terminal:
                value = self.learner.next_values([end.env], end.observation[None], [1.0])
                self._final_values.append(float(value[0]))
        self._continue_mask[t + 1] = ~self.dones[t]

    def final_values(self) -> list[float]:
        return self._final_values

    def last_outputs(self) -> Array:
        last: Array = np.zeros_like(self.outputs[-1])
        last[:, -1] = self.learner.next_values(np.arange(len(last)), self.observations[-1], self._continue_mask[-1])
        return last

    def estimate(self, rewards: Array) -> Columns | None:
        columns = super().estimate(rewards)
        return columns and {**columns, "continue_mask": self._rows(self._continue_mask[:-1])}

    def minibatches(self) -> Array:
        return self.rng.permutation(self.config.num_envs).reshape(self.config.num_minibatches, -1)

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        state = np.array(self.learner.state.cpu().numpy())
        return {"memory.state": state, "memory.keeps": np.array(self._continue_mask[-1])}, {}

    def restore_own_state(self, resume: Checkpoint, is_exact: bool) -> None:
        if is_exact:
            self.learner.state.copy_(self.learner.state.new_tensor(resume.arrays["memory.state"]))
            self._continue_mask[-1] = resume.arrays["memory.keeps"]


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with closing(AtariEnvs.from_config(config, run.frames, INPUT_FRAMES)) as games:
        agent = Agent(games.action_count, SIZES.with_architecture(config.architecture, INPUT_FRAMES), LSTM_UNITS)
        Training(config, run, games, agent).train(resume)


class LstmPolicy:
    """Acts on images [rows, 4, 84, 84], of which it sees the latest frame; needs torch.

    Each row is a separate game with its own LSTM state.
    """

    def __init__(self, agent: Agent, first_action: int, architecture: Architecture = CONV_NETWORK) -> None:
        import torch

        from cleanrl_worker.learners.torch_conv import as_tensors

        torch.set_num_threads(devices.thread_count())
        self._weights = as_tensors(agent.parameters, torch.device("cpu"), is_learned=False)
        self._first_action, self._architecture = first_action, architecture
        self._state = torch.zeros(2, 0, self._weights["lstm.weight_hh_l0"].shape[1])

    def reset_state(self, row: int) -> None:
        """Reset the LSTM state of a row, in which a new game starts."""
        self._state[:, row : row + 1] = 0

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the most likely actions if `deterministic`, else samples."""
        return self._select_actions(observations, () if deterministic else (rng,) * len(observations))

    def sample(self, observations: Array, rngs: Sequence[np.random.Generator]) -> Array:
        """Sample actions, with a random generator per row."""
        return self._select_actions(observations, rngs)

    def _select_actions(self, observations: Array, rngs: Sequence[np.random.Generator]) -> Array:
        import torch

        from cleanrl_worker.learners.torch_conv import channels_last

        if observations.shape[1:] != (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX):
            raise ValueError(
                f"observations are {observations.shape[1:]}; expected {(FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)}"
            )
        if self._state.shape[1] != len(observations):
            self._state = self._state.new_zeros(2, len(observations), self._state.shape[2])
        continue_mask = torch.ones(1, len(observations))
        with torch.no_grad():
            images = channels_last(torch.as_tensor(observations[:, -INPUT_FRAMES:]))
            result, self._state = outputs(self._weights, images, self._state, continue_mask, self._architecture)
            scores = result[:, :-1].numpy()
        if rngs:
            scores = scores + np.stack([rng.gumbel(size=scores.shape[1]) for rng in rngs])
        return np.asarray(scores.argmax(1) + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    def make_saved(sizes: ConvNetworkSizes) -> Agent:
        weights = checkpoint.weights
        return Agent(len(weights["actor.bias"]), sizes, weights["lstm.weight_hh_l0"].shape[1])

    return base.load_conv_agent(NAME, checkpoint, make_saved, frames=INPUT_FRAMES)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent = _load_agent(checkpoint)
    return LstmPolicy(agent, checkpoint.facts["first_action"], base.saved_architecture(checkpoint))


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order."""
    return _load_agent(checkpoint).state_dict()
