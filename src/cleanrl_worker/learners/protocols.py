"""What algorithms require of their learners, and learners of an algorithm's settings.

A learner is implemented in numpy (`…_kernels.py`) and in torch (`autograd_learners.py`, `torch_control.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cleanrl_worker.learners.architecture import Architecture
    from cleanrl_worker.learners.ppo_kernels import Integers, PpoLosses, RolloutBatch

Array = Any


class NamedParameters(Protocol):
    """A network that can name the parts of its parameters and of vectors with the same shape."""

    parameters: Any

    def zero_vector(self) -> Any: ...
    def named_arrays(self, views: Any) -> Mapping[str, Array]: ...
    def assign(self, views: Any, arrays: Mapping[str, Array]) -> None: ...


class AdamState(Protocol):
    """A learner with one Adam."""

    count: int
    """Number of Adam steps taken."""

    @property
    def first_moment(self) -> Any:
        """Adam's running mean of the gradient."""

    @property
    def second_moment(self) -> Any:
        """Adam's running mean of the squared gradient."""

    def sync_networks(self) -> None:
        """Copy the learner's parameters into the network, where it has its own copy."""


class NonFiniteDetector(Protocol):
    """A learner that detects by itself which metrics are not finite."""

    def first_non_finite(self) -> tuple[int, list[str]] | None:
        """Return how many updates ago a metric was first not finite, and which; None if `update` itself reports it."""


class ActorForward(Protocol):
    """An actor's forward pass for a fixed number of observations."""

    def refresh(self) -> None:
        """Must be called after the parameters have changed."""

    def __call__(self, observations: Array, out: Array) -> None: ...


class PpoLearner(AdamState, Protocol):
    """Updates an actor and a critic from rollouts."""

    def begin_update(self, learning_rate: float) -> None:
        """Start an update: one pass over a rollout."""

    is_stopped: Callable[[], bool]
    """Called after each minibatch; returns whether to skip the others."""

    @property
    def is_gradient_finite(self) -> bool:
        """Whether every gradient of the update was finite. Waits for the device."""

    def run_epoch(self, batch: RolloutBatch, order: Integers) -> None:
        """Take one gradient step per minibatch, over all rows in this order, until a gradient is not finite."""

    def losses(self) -> PpoLosses: ...

    def actor(self, rows: int) -> ActorForward:
        """Return a forward pass of the current actor for this number of observations."""


class ValueLearner(AdamState, NonFiniteDetector, Protocol):
    """Updates a network of action values."""

    def update(self, batch: Any, learning_rate: float) -> bool:
        """Take one gradient step; return False if the gradient is not finite, in which case training must stop."""

    def losses(self) -> dict[str, float]:
        """Return the losses of the last batch under CleanRL's names."""

    def forward(self, rows: int) -> Callable[[Array], Array]:
        """Return a forward pass of the current weights: this number of observations to outputs [outputs, rows]."""


class TargetValueLearner(ValueLearner, Protocol):
    """A learner with a target network."""

    def update_target(self, tau: float) -> None:
        """Set θ_target ← θ_target + τ (θ - θ_target); τ = 1 copies."""


class ActorCriticLearner(NonFiniteDetector, Protocol):
    """Updates the networks of SAC, TD3 or DDPG."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether an update continues while the caller does something else."""

    def act(self, observations: Array, meanwhile: Callable[[], None] = ...) -> Array:
        """Return the actor's outputs [environments, outputs] for one observation per environment.

        `meanwhile` is called after the computation has started; it does not change what is returned.
        """

    def update(self, replay: Any, is_policy_due: bool, is_target_due: bool) -> bool:
        """Update the critics on a new sample, and the policy and targets where due; False if a loss is not finite."""

    def losses(self) -> dict[str, float]:
        """Return the losses of the latest update under CleanRL's names."""

    def sync_networks(self) -> None:
        """Copy the learner's own weights, if it has any, to the numpy networks."""

    def optimizer_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the arrays and JSON facts of the optimizers and random generator for a checkpoint."""

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None: ...


# --- the fields of an algorithm's Config that its learner reads


class NetworkSettings(Protocol):
    @property
    def architecture(self) -> Architecture: ...


class PpoSettings(Protocol):
    norm_adv: bool
    clip_coef: float
    clip_vloss: bool
    ent_coef: float
    vf_coef: float
    max_grad_norm: float


class RolloutSettings(Protocol):
    """Of a learner with minibatches of a rollout."""

    learning_rate: float
    num_envs: int
    max_grad_norm: float

    @property
    def batch_size(self) -> int: ...
    @property
    def minibatch_size(self) -> int: ...


class FramePpoSettings(PpoSettings, NetworkSettings, Protocol): ...


class PpoRolloutSettings(FramePpoSettings, RolloutSettings, Protocol): ...


class PpgSettings(PpoRolloutSettings, Protocol):
    num_steps: int
    beta_clone: float
    num_aux_rollouts: int
    n_aux_grad_accum: int

    @property
    def phase_rollouts(self) -> int:
        """Rollouts of single games in a policy phase."""


class PqnSettings(RolloutSettings, NetworkSettings, Protocol): ...


class ActorCriticSettings(Protocol):
    batch_size: int
    gamma: float
    tau: float


class DiscreteSacSettings(NetworkSettings, Protocol):
    gamma: float
    policy_lr: float
    q_lr: float
    alpha: float
    autotune: bool
    target_entropy_scale: float


class TorchSettings(Protocol):
    seed: int
    cuda: bool
    torch_deterministic: bool
    cuda_graphs: bool
    compile: bool
