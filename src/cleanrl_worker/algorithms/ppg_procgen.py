"""Phasic policy gradient for Procgen games run by envpool.

PPO with an auxiliary phase: after a number of updates, the shared layers and a second value head learn to predict the
returns of all rollouts since the last such phase, while a KL divergence keeps the policy as it was. The loss of the
critic itself does not train the shared layers, so that it cannot interfere with the policy. PPG needs fewer game steps
than ppo_procgen, but several gigabytes of memory for the rollouts. Use it with many games and a GPU.

Paper: Cobbe, Hilton, Klimov, Schulman, "Phasic Policy Gradient", arXiv:2009.04416 (2020).
Games: Cobbe, Hesse, Hilton, Schulman, "Leveraging Procedural Generation to Benchmark Reinforcement Learning",
arXiv:1912.01588 (2019). Network: Espeholt et al., "IMPALA", arXiv:1802.01561 (2018).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from cleanrl_worker.algorithms import base, ppo_atari, ppo_procgen
from cleanrl_worker.algorithms.ppo_procgen import CONV_LAYERS, NETWORK, SIZES
from cleanrl_worker.algorithms.settings import LEARNING, ROLLOUT, SettingsConflict
from cleanrl_worker.environments.procgen_games import (
    COLORS,
    FRAME_SIDE_PX,
    SHAPE,
    ProcgenEnvs,
    check_procgen_env,
    find_procgen_task,
)
from cleanrl_worker.learners import devices
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import ConvNetworkSizes, layer_shapes, uniform_weights
from cleanrl_worker.learners.protocols import PpgSettings
from cleanrl_worker.loops.on_policy_frames import Columns, describe_run
from cleanrl_worker.replay.buffers import available_memory_bytes
from mosaic.contracts.errors import refuse_key

if TYPE_CHECKING:
    from torch import Tensor

    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_conv import Weights
    from cleanrl_worker.learners.torch_ppg import PpgLearner
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ppg_procgen"
CONV_NORM, DENSE_NORM, HEAD_NORM = 1.0, 1.4, 0.1
"""Initial norms of the weights of each unit."""
RESIDUAL_NORM = (1 / math.sqrt(3) / math.sqrt(2)) ** 0.5
"""The same in residual blocks: the smaller, the more of them are added up, two in each of three sequences."""
make_env = ppo_procgen.make_env
"""Makes the environment that `check` gets."""


class Config(ppo_procgen.Config, defaults={"exp_name": NAME}):
    """Settings of PPG for Procgen games."""

    update_epochs: ClassVar[Any] = property(lambda config: config.e_policy)  # type: ignore[misc]
    norm_adv: ClassVar[bool] = False  # type: ignore[misc]
    cycle_name: ClassVar[str] = "a phase"

    adv_norm_fullbatch: bool = Field(default=True, json_schema_extra=LEARNING)
    """Whether the advantages of each rollout are normalized to mean 0 and standard deviation 1."""
    n_iteration: int = Field(default=32, ge=1, le=100_000, json_schema_extra=ROLLOUT)
    """Rollouts of all games, with an update each, between auxiliary phases; all of them are kept in memory."""
    e_policy: int = Field(default=1, ge=1, le=1000, json_schema_extra=LEARNING)
    """Epochs per update: passes over the rollout."""
    v_value: Literal[1] = Field(default=1, json_schema_extra=LEARNING)
    """Always 1: the critic is trained in the same epochs as the policy."""
    e_auxiliary: int = Field(default=6, ge=1, le=1000, json_schema_extra=LEARNING)
    """Epochs of an auxiliary phase: passes over all rollouts since the last one."""
    beta_clone: float = Field(default=1.0, ge=0, le=1000, json_schema_extra=LEARNING)
    """The weight of the KL divergence that keeps the policy as it was before the auxiliary phase."""
    num_aux_rollouts: int = Field(default=4, ge=1, json_schema_extra=LEARNING)
    """Rollouts of single games per minibatch of the auxiliary phase."""
    n_aux_grad_accum: int = Field(default=1, ge=1, le=10_000, json_schema_extra=LEARNING)
    """Minibatches per gradient step of the auxiliary phase; more and smaller ones take less memory."""

    @model_validator(mode="after")
    def _validate_phase(self) -> Self:
        rollouts = self.num_aux_rollouts * self.n_aux_grad_accum
        if self.phase_rollouts % rollouts:
            raise SettingsConflict(
                f"n_iteration × num_envs = {self.phase_rollouts} rollouts of a phase cannot be split into gradient "
                f"steps of num_aux_rollouts × n_aux_grad_accum = {rollouts}",
                *("n_iteration", "num_envs", "num_aux_rollouts", "n_aux_grad_accum"),
            )
        if self.total_timesteps < self.cycle_steps:
            raise SettingsConflict(
                f"total_timesteps = {self.total_timesteps} is less than one phase of n_iteration × num_envs × "
                f"num_steps = {self.cycle_steps} steps",
                *("total_timesteps", "n_iteration", "num_envs", "num_steps"),
            )
        return self

    @property
    def phase_rollouts(self) -> int:
        """Rollouts of single games in a phase."""
        return self.n_iteration * self.num_envs

    @property
    def cycle_steps(self) -> int:
        return self.n_iteration * self.batch_size


class Agent(ppo_procgen.Agent):
    """Actor, critic and auxiliary value head on a shared IMPALA network."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES) -> None:
        super().__init__(action_count, sizes)
        self.shapes |= layer_shapes("aux_critic", 1, sizes.hidden[-1])

    def initialize(self, rng: np.random.Generator) -> None:
        """Give the weights of each unit a random direction and a norm that depends on the layer; biases are zero."""
        for name, part in uniform_weights(self.shapes, rng).items():
            norms = np.sqrt(np.square(part).sum(tuple(range(1, part.ndim)), keepdims=True))
            self.parameters[name] = np.zeros_like(part) if part.ndim == 1 else part * (self._unit_norm(name) / norms)

    def _unit_norm(self, name: str) -> float:
        if name not in self.trunk:
            return HEAD_NORM
        if len(self.trunk[name]) == 2:
            return DENSE_NORM
        return RESIDUAL_NORM if "res_block" in name else CONV_NORM


# --- the losses


def _hidden(weights: Weights, images: Tensor, architecture: Architecture) -> Tensor:
    from cleanrl_worker.learners.torch_conv import impala_features

    return impala_features(weights, images, architecture)


def _head(weights: Weights, name: str, hidden: Tensor) -> Tensor:
    from torch.nn.functional import linear

    return linear(hidden, weights[f"{name}.weight"], weights[f"{name}.bias"])


def outputs(weights: Weights, images: Tensor, architecture: Architecture = NETWORK) -> Tensor:
    """Return the actor's logits followed by the critic's value, whose gradient does not reach the shared layers."""
    import torch

    hidden = _hidden(weights, images, architecture)
    return torch.cat([_head(weights, "actor", hidden), _head(weights, "critic", hidden.detach())], 1)


loss = functools.partial(ppo_atari.loss, forward=outputs)


def auxiliary_loss(weights: Weights, batch: Any, config: PpgSettings) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of a minibatch of the auxiliary phase, and its three parts.

    L = ½ E[(V_aux - R)²] + β_clone E[KL(π_old, π)] + ½ E[(V - R)²], where V does not train the shared layers.
    """
    from torch.nn.functional import kl_div, log_softmax

    hidden = _hidden(weights, batch.images, config.architecture)
    policy = log_softmax(_head(weights, "actor", hidden), 1)
    kl_loss = kl_div(policy, log_softmax(batch.logits, 1), reduction="batchmean", log_target=True)
    aux_value_loss = 0.5 * (_head(weights, "aux_critic", hidden)[:, 0] - batch.returns).square().mean()
    real_value_loss = 0.5 * (_head(weights, "critic", hidden.detach())[:, 0] - batch.returns).square().mean()
    total = aux_value_loss + config.beta_clone * kl_loss + real_value_loss
    return total, [kl_loss, aux_value_loss, real_value_loss]


def make_learner(
    arrays: Mapping[str, Array], shape: tuple[int, ...], config: PpgSettings, compute: TorchContext
) -> PpgLearner:
    from cleanrl_worker.learners.torch_ppg import PpgLearner

    forward = functools.partial(outputs, architecture=config.architecture)
    policy_phase, auxiliary_phase = (
        functools.partial(loss, config=config),
        functools.partial(auxiliary_loss, config=config),
    )
    return PpgLearner(arrays, shape, forward, policy_phase, auxiliary_phase, config, compute)


# --- training


class Training(ppo_procgen.ProcgenTraining):
    """Runs `n_iteration` updates of PPO, then an auxiliary phase.

    The rollouts that the auxiliary phase needs are too large for a checkpoint, so a run resumes from the end of one.
    """

    name = NAME
    make_learner = staticmethod(make_learner)
    config: Config
    learner: PpgLearner

    def can_resume_here(self) -> bool:
        return self.iteration % self.config.n_iteration == 0

    def estimate(self, rewards: Array) -> Columns | None:
        columns = super().estimate(rewards)
        if columns is None:
            return None
        first = (self.iteration - 1) % self.config.n_iteration * self.config.num_envs
        self.learner.store_rollouts(first, self.observations[:-1], columns["returns"].reshape(self.actions.shape))
        if self.config.adv_norm_fullbatch:
            advantages = columns["advantages"]
            columns["advantages"] = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
        return columns

    def update(self) -> bool:
        return super().update() and (not self.can_resume_here() or self._run_auxiliary_phase())

    def _run_auxiliary_phase(self) -> bool:
        """Learn from all rollouts of the phase; return False if the run was stopped before the end."""
        config, learner = self.config, self.learner
        learner.begin_auxiliary_phase()
        for rollouts in np.arange(config.phase_rollouts).reshape(-1, config.num_aux_rollouts):
            learner.store_old_policy(rollouts)
            if self.is_stopped():
                return False
        for _ in range(config.e_auxiliary):
            order = self.rng.permutation(config.phase_rollouts)
            for minibatches in order.reshape(-1, config.n_aux_grad_accum, config.num_aux_rollouts):
                learner.update_auxiliary(minibatches)
                if self.is_stopped():
                    return False
        return True

    def losses(self, columns: Columns) -> tuple[dict[str, float], bool]:
        metrics, is_finite = super().losses(columns)
        if not self.can_resume_here():
            return metrics, is_finite
        auxiliary, is_auxiliary_finite = self.learner.auxiliary_losses()
        parts = {f"aux/{name}": value for name, value in auxiliary.items()}
        return metrics | parts, is_finite and is_auxiliary_finite

    def _shape(self) -> dict[str, Any]:
        return {**super()._shape(), "n_iteration": self.config.n_iteration}

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, facts = super().own_state()
        return arrays, {**facts, "auxiliary_adam_count": self.learner.auxiliary_head.adam.count}

    def restore_own_state(self, resume: Checkpoint, is_exact: bool) -> None:
        super().restore_own_state(resume, is_exact)
        self.learner.auxiliary_head.restore(resume.arrays, resume.facts["auxiliary_adam_count"])


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment or the rollouts of a phase do not fit; otherwise return the sizes of the run."""
    actions = check_procgen_env(NAME, env)
    needed, free = config.cycle_steps * math.prod(SHAPE), available_memory_bytes()
    if needed > free:
        fitting = max(1, int(config.n_iteration * free / needed * 0.8))
        raise refuse_key(
            "n_iteration",
            f"the rollouts of a phase need {needed / 1e9:,.1f} GB, but only {free / 1e9:,.1f} GB of memory are "
            f"available. Lower it to {fitting:,} or less, or num_envs or num_steps.",
        )
    agent = Agent(actions, SIZES.with_architecture(config.architecture))
    return describe_run(agent, actions, COLORS, FRAME_SIDE_PX)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    task = find_procgen_task(config.env_id)
    with closing(ProcgenEnvs(task, config.num_envs, config.seed, devices.thread_count(), run.frames)) as games:
        agent = Agent(games.action_count, SIZES.with_architecture(config.architecture))
        Training(config, run, games, agent).train(resume)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return ppo_procgen.frame_policy(state_dict_of(checkpoint), checkpoint)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the agent in the order of CleanRL's script, which saves none."""

    def make_saved(sizes: ConvNetworkSizes) -> Agent:
        return Agent(len(checkpoint.weights["actor.bias"]), sizes)

    return base.load_conv_agent(NAME, checkpoint, make_saved, NETWORK, CONV_LAYERS).state_dict()
