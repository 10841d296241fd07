"""The settings of algorithms that learn from a replay buffer, each stated once, like those in settings.py."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from cleanrl_worker.algorithms.settings import LEARNING, ROLLOUT, RUN, AlgorithmConfig, AtariConfig, SettingsConflict


class ReplayConfig(AlgorithmConfig):
    """Of algorithms that learn from a replay buffer."""

    checkpoint_replay_mb: float = Field(default=1024, ge=0, json_schema_extra=RUN)
    """The maximum size of a replay buffer that is saved in checkpoints, in MB; without it resuming is not exact."""
    buffer_size: int = Field(default=1_000_000, ge=1, json_schema_extra=ROLLOUT)
    """The capacity of the replay buffer in transitions."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=LEARNING)
    """The discount factor of future rewards."""
    batch_size: int = Field(default=256, ge=1, le=1_000_000, json_schema_extra=LEARNING)
    """Transitions per gradient step."""
    learning_starts: int = Field(default=10_000, ge=0, json_schema_extra=LEARNING)
    """Environment steps before the first gradient step."""


class ValueReplayConfig(ReplayConfig, defaults={"buffer_size": 10_000, "batch_size": 128}):
    """Of algorithms that learn action values: DQN and its successors."""

    learning_rate: float = Field(default=2.5e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of Adam; 1e-4 to 1e-3 are usual."""
    num_envs: int = Field(default=1, ge=1, le=4096, json_schema_extra=ROLLOUT)
    """The number of parallel environments."""
    target_network_frequency: int = Field(default=500, ge=1, json_schema_extra=LEARNING)
    """Environment steps between updates of the target network."""
    train_frequency: int = Field(default=10, ge=1, le=1_000_000, json_schema_extra=LEARNING)
    """Steps per environment between gradient steps."""

    @model_validator(mode="after")
    def _validate_buffer(self) -> Self:
        if self.buffer_size < self.num_envs:
            message = f"buffer_size = {self.buffer_size} is too small for num_envs = {self.num_envs} environments"
            raise SettingsConflict(message, "buffer_size", "num_envs")
        return self

    @property
    def buffer_capacity(self) -> int:
        """The capacity that is allocated: no more than the run's number of steps."""
        return max(min(self.buffer_size, self.total_timesteps), self.num_envs)


class AtariValueConfig(AtariConfig, ValueReplayConfig, defaults={"batch_size": 32, "learning_starts": 80_000}):
    """Of algorithms that learn action values of Atari games."""

    learning_rate: float = Field(default=1e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of Adam; 5e-5 to 5e-4 are usual."""
    num_envs: int = Field(default=1, ge=1, le=4096, json_schema_extra=ROLLOUT)
    """The number of parallel games."""
    buffer_size: int = Field(default=1_000_000, ge=1, json_schema_extra=ROLLOUT)
    """The capacity of the replay buffer in transitions; a million take 7 GB of memory."""
    train_frequency: int = Field(default=4, ge=1, le=1_000_000, json_schema_extra=LEARNING)
    """Steps per game between gradient steps."""


class DistributionalConfig(AlgorithmConfig):
    """Of algorithms that learn a distribution of returns over fixed atoms."""

    n_atoms: int = Field(default=51, ge=2, le=10_000, json_schema_extra=LEARNING)
    """The number of atoms of a distribution; 51 and 101 are usual."""
    v_min: float = Field(default=-10.0, json_schema_extra=LEARNING)
    """The return of the lowest atom."""
    v_max: float = Field(default=10.0, json_schema_extra=LEARNING)
    """The return of the highest atom."""

    @model_validator(mode="after")
    def _validate_atoms(self) -> Self:
        if not self.v_min < self.v_max:
            raise SettingsConflict(f"v_min = {self.v_min:g} must be below v_max = {self.v_max:g}", "v_min", "v_max")
        return self

    @property
    def atoms(self) -> dict[str, Any]:
        """The settings of the atoms alone."""
        return {"n_atoms": self.n_atoms, "v_min": self.v_min, "v_max": self.v_max}


class ActorCriticReplayConfig(ReplayConfig):
    """Of algorithms for continuous actions that learn an actor and critics."""

    kernel_units: ClassVar[int] = 256
    """Units of the widest layer for which numpy is at least 1.2 times as fast as torch on a CPU."""

    num_envs: int = Field(default=1, ge=1, le=4096, json_schema_extra=ROLLOUT)
    """The number of parallel environments; one update follows each step of all of them."""
    buffer_size: int = Field(default=1_000_000, ge=1, json_schema_extra=ROLLOUT)
    """The capacity of the replay buffer in transitions; 100,000 to 1,000,000 are usual."""
    her_goals: int = Field(default=0, ge=0, le=1000, json_schema_extra=ROLLOUT)
    """Reached goals per desired goal in samples (hindsight experience replay, for goal environments); 0: none."""
    batch_size: int = Field(default=256, ge=1, le=1_000_000, json_schema_extra=LEARNING)
    """Transitions per update; 64 to 512 are usual."""
    learning_starts: int = Field(default=25_000, ge=0, json_schema_extra=LEARNING)
    """Environment steps with random actions before the first update; 1,000 to 25,000 are usual."""
    tau: float = Field(default=0.005, gt=0, le=1, json_schema_extra=LEARNING)
    """The fraction by which each target update moves the target networks; 0.001 to 0.02 are usual."""
    policy_frequency: int = Field(default=2, ge=1, le=1000, json_schema_extra=LEARNING)
    """Updates of the critics per update of the actor and the target networks."""

    @model_validator(mode="after")
    def _validate_goals(self) -> Self:
        others = [text for text in self.wrappers or () if not text.startswith("time-limit")]
        if self.her_goals and others:
            raise SettingsConflict(
                f"her_goals = {self.her_goals} computes rewards from the environment's own goals, which {others[0]} "
                "would change: leave one of the two out",
                *("her_goals", "wrappers"),
            )
        return self
