"""The updates of SAC, TD3 and DDPG in torch: the losses of each algorithm's file, differentiated by autograd.

They are the reference for the numpy kernels in control_kernels.py, and the implementation for GPUs. Critics are
stacked: one batched product evaluates all of them. Imports only torch, numpy and modules that need nothing else.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.learners.torch_backend import (
    GraphedStep,
    InferenceStep,
    NonFiniteReport,
    StepMetrics,
    TorchAdam,
    TorchContext,
)
from cleanrl_worker.learners.torch_dense import ACTIVATIONS
from cleanrl_worker.learners.torch_feeds import make_feed

if TYPE_CHECKING:
    from cleanrl_worker.learners.protocols import ActorCriticSettings

POLICY_METRIC_NAMES = ("actor_loss", "alpha_loss")


class TransitionTensors(NamedTuple):
    """A batch of transitions as tensors."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminals: Tensor
    next_observations: Tensor


class StackedNetworks:
    """Networks of equal shape, stacked: weights [networks, inputs, outputs], biases [networks, 1, outputs]."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]], activation: str) -> None:
        self.layers = layers
        self.activation = activation
        self._activate, _ = ACTIVATIONS[activation]
        self.tensors = [tensor for layer in layers for tensor in layer]

    @classmethod
    def from_networks(cls, networks: Sequence[Any], device: torch.device, is_learned: bool) -> StackedNetworks:
        """Create a stack from numpy networks whose layers are matrices [outputs, inputs + 1] with the bias last."""
        layers = []
        for layer_matrices in zip(*(network.parameters.layers for network in networks), strict=True):
            matrices = torch.stack([torch.as_tensor(layer) for layer in layer_matrices]).transpose(1, 2).to(device)
            weight, bias = matrices[:, :-1].contiguous(), matrices[:, -1:].contiguous()
            layers.append((weight.requires_grad_(is_learned), bias.requires_grad_(is_learned)))
        return cls(layers, networks[0].architecture.activation)

    def first(self) -> StackedNetworks:
        """Return the first network alone."""
        return StackedNetworks([(weight[:1], bias[:1]) for weight, bias in self.layers], self.activation)

    def __call__(self, *parts: Tensor) -> Tensor:
        """Return the outputs [networks, rows, outputs] for inputs [rows, inputs], which may be given in parts."""
        inputs = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if inputs.device.type == "cpu" or len(self.layers[0][0]) == 1:
            return self._forward_one_by_one(inputs)
        hidden = inputs.expand(len(self.layers[0][0]), -1, -1)
        for weight, bias in self.layers[:-1]:
            hidden = self._activate(torch.baddbmm(bias, hidden, weight))
        return torch.baddbmm(self.layers[-1][1], hidden, self.layers[-1][0])

    def _forward_one_by_one(self, inputs: Tensor) -> Tensor:
        """Evaluate one network at a time: on a CPU a batched product of transposed matrices is three times slower.

        On a GPU the product of a single network adds its bias by itself, if that is a vector.
        """
        hidden = [inputs] * len(self.layers[0][0])
        for index, (weight, bias) in enumerate(self.layers):
            parts = zip(bias[:, 0].unbind(), hidden, weight.unbind(), strict=True)
            hidden = [
                torch.addmm(bias_vector, layer_input, weight_matrix)
                for bias_vector, layer_input, weight_matrix in parts
            ]
            if index < len(self.layers) - 1:
                hidden = [self._activate(part) for part in hidden]
        return torch.stack(hidden)


class ModuleStack:
    """Networks of the user's own, with the interface of `StackedNetworks`."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = modules
        self.tensors: list[Tensor] = [tensor for module in modules for tensor in module.parameters()]

    @classmethod
    def from_networks(cls, networks: Sequence[Any], device: torch.device, is_learned: bool) -> ModuleStack:
        return cls([copy.deepcopy(part.module).to(device).requires_grad_(is_learned) for part in networks])

    def first(self) -> ModuleStack:
        """Return the first network alone."""
        return ModuleStack(self._modules[:1])

    def __call__(self, *parts: Tensor) -> Tensor:
        """Return the outputs [networks, rows, outputs] for inputs [rows, inputs], which may be given in parts."""
        return torch.stack([module(torch.cat(parts, 1)) for module in self._modules])


def copy_parameters(tensors: Sequence[Tensor], vectors: Sequence[Any], *, to_vectors: bool) -> None:
    """Copy a stack's tensors, or their moments, to the vectors of numpy networks, or back."""
    if isinstance(vectors[0], dict):
        for tensor, array in zip(tensors, (part for vector in vectors for part in vector.values()), strict=True):
            ours = torch.from_numpy(array)
            with torch.no_grad():
                (ours if to_vectors else tensor).copy_(tensor if to_vectors else ours)
        return
    for index, (weight, bias) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        for number, vector in enumerate(vectors):
            matrix = torch.as_tensor(vector.layers[index])
            if to_vectors:
                matrix[:, :-1] = weight[number].detach().T.cpu()
                matrix[:, -1] = bias[number, 0].detach().cpu()
            else:
                with torch.no_grad():
                    weight[number] = matrix[:, :-1].T.to(weight.device)
                    bias[number, 0] = matrix[:, -1].to(bias.device)


class ActorCriticLosses(NamedTuple):
    """The losses of an algorithm. Each gets the learner, whose networks, bounds and noise it uses."""

    td_targets: Callable[[Any, TransitionTensors], Tensor]
    """Returns the regression targets of the critics."""
    critic_loss: Callable[[Any, TransitionTensors, Tensor], tuple[Tensor, Tensor, Tensor]]
    """Returns the loss for these targets, and each critic's error and mean value."""
    actor_loss: Callable[..., Tensor]
    alpha_loss: Callable[[Any, Tensor], Tensor] | None = None
    """Returns the loss of SAC's temperature for the actor's outputs."""


# --- the learners


class TorchActorCriticLearner:
    """The common part of the three. It has its own weights; `sync_networks` copies them to the numpy networks."""

    _alpha_adam: TorchAdam | None = None
    """The optimizer of SAC's temperature, if it is tuned."""

    def __init__(
        self,
        networks: Any,
        replay: Any,
        settings: ActorCriticSettings,
        learning_rates: tuple[float, float],
        scale: Any,
        bias: Any,
        compute: TorchContext,
        losses: ActorCriticLosses,
    ) -> None:
        rows, device = settings.batch_size, compute.device
        self._losses = losses
        self.networks = networks
        self.compute = compute
        self._stacks: list[tuple[StackedNetworks | ModuleStack, Sequence[Any]]] = []
        """Each stack with the numpy networks that it is saved as."""

        def stack(parts: Sequence[Any], is_learned: bool) -> StackedNetworks | ModuleStack:
            kind = ModuleStack if isinstance(parts[0].parameters, dict) else StackedNetworks
            self._stacks.append((kind.from_networks(parts, device, is_learned), parts))
            return self._stacks[-1][0]

        self.actor, self.critics = stack([networks.actor], True), stack(networks.critics, True)
        self.targets = stack(networks.targets, False)
        self.target_actor = stack([networks.target_actor], False) if networks.target_actor else None
        self._target_tensors = [tensor for stack, _ in self._stacks[2:] for tensor in stack.tensors]
        self._source_tensors = [*self.critics.tensors, *self.actor.tensors][: len(self._target_tensors)]
        """The tensors that the target tensors follow."""
        self.actor_adam = TorchAdam(self.actor.tensors, learning_rates[0], compute)
        self.critic_adam = TorchAdam(self.critics.tensors, learning_rates[1], compute)
        self._tau = settings.tau
        self.scale = torch.as_tensor(scale, dtype=torch.float32, device=device).reshape(-1)
        self.bias = torch.as_tensor(bias, dtype=torch.float32, device=device).reshape(-1)
        self._noise_shape = (rows, networks.action_size)

        self._feed = make_feed(replay, rows, compute)
        self._steps: dict[tuple[bool, bool], GraphedStep] = {}
        critics = [f"qf{number + 1}" for number in range(len(networks.critics))]
        names = [*(f"{name}_loss" for name in critics), *(f"{name}_values" for name in critics), *POLICY_METRIC_NAMES]
        self._metrics = StepMetrics(names, compute)
        self._critic_metrics = self._metrics.values[: 2 * len(critics)].view(2, -1)
        self._policy_metrics = self._metrics.values[2 * len(critics) :]
        self.act = InferenceStep(
            (replay.num_envs, networks.observation_size), torch.float32, networks.actor.outputs,
            lambda observations: self.actor(observations)[0], compute,
        )  # fmt: skip

    @property
    def is_asynchronous(self) -> bool:
        return self.compute.is_cuda

    def _update_actor(self, batch: TransitionTensors) -> None:
        """Update the actor and, for SAC, the temperature. Fills `_policy_metrics`."""
        raise NotImplementedError

    def sample_noise(self) -> Tensor:
        """Return standard normal noise [rows, actions]."""
        return torch.randn(self._noise_shape, device=self.compute.device)

    def update(self, replay: Any, is_policy_due: bool, is_target_due: bool) -> bool:
        """Update the critics on a new sample, and the policy and targets where due.

        It does not wait for the device, so `first_non_finite` reports metrics that are not finite.
        """
        self._feed.prepare(replay)
        kind = (is_policy_due, is_target_due)
        if kind not in self._steps:
            self._steps[kind] = GraphedStep(
                lambda: self._update_networks(*kind),
                self._state_tensors,
                self.compute,
                self._feed.load,
                self._metrics.check,
            )
        self._steps[kind]()
        self._feed.record_launch()
        self._metrics.count_step()
        return True

    def _update_networks(self, is_policy_due: bool, is_target_due: bool) -> None:
        fields = self._feed.fields
        batch = TransitionTensors(
            fields["observation"].float(),
            fields["action"],
            fields["reward"][:, 0],
            fields["terminal"][:, 0],
            fields["next_observation"].float(),
        )
        with torch.no_grad():
            td_targets = self._losses.td_targets(self, batch)
        loss, errors, values = self._losses.critic_loss(self, batch, td_targets)
        self.critic_adam.step(loss)
        self._critic_metrics.copy_(torch.stack([errors, values]))
        if is_policy_due:
            self._update_actor(batch)
        if is_target_due:
            with torch.no_grad():
                torch._foreach_lerp_(self._target_tensors, self._source_tensors, self._tau)

    def _state_tensors(self) -> list[Tensor]:
        adams = [*self.actor_adam.state_tensors(), *self.critic_adam.state_tensors()]
        return [*adams, *self._target_tensors, *self._metrics.state_tensors()]

    def losses(self) -> dict[str, float]:
        """Return the latest losses under CleanRL's names. Waits for the device."""
        metrics = self._metrics.to_dict()
        count = len(self.networks.critics)
        if count > 1:
            metrics["qf_loss"] = sum(metrics[f"qf{number + 1}_loss"] for number in range(count)) / count
        if self._alpha_adam is None:
            del metrics["alpha_loss"]
        return metrics

    def first_non_finite(self) -> NonFiniteReport | None:
        return self._metrics.first_non_finite()

    # --- saving

    def sync_networks(self) -> None:
        for stack, parts in self._stacks:
            copy_parameters(stack.tensors, [part.parameters for part in parts], to_vectors=True)

    def _moments(self) -> Iterator[tuple[str, Sequence[Tensor], list[Any]]]:
        """Yield each moment of each optimizer: the prefix of its names, its tensors, and the networks it belongs to."""
        actor, *critics = self.networks.trained_networks.values()
        for adam, parts in ((self.actor_adam, [actor]), (self.critic_adam, critics)):
            yield "adam.first.", adam.first_moment, parts
            yield "adam.second.", adam.second_moment, parts

    def optimizer_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays: dict[str, Any] = {"torch.rng": self.compute.random_state().numpy()}
        for prefix, tensors, parts in self._moments():
            vectors = [part.zero_vector() for part in parts]
            copy_parameters(tensors, vectors, to_vectors=True)
            for part, vector in zip(parts, vectors, strict=True):
                arrays |= {f"{prefix}{name}": array for name, array in part.named_arrays(vector).items()}
        counts = dict.fromkeys(self.networks.trained_networks, self.critic_adam.count)
        return arrays, {"counts": counts | {"actor": self.actor_adam.count}}

    def restore(self, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        for prefix, tensors, parts in self._moments():
            vectors = [part.zero_vector() for part in parts]
            for part, vector in zip(parts, vectors, strict=True):
                part.assign(vector, select_by_prefix(prefix, arrays))
            copy_parameters(tensors, vectors, to_vectors=False)
        self.actor_adam.count, self.critic_adam.count = facts["counts"]["actor"], facts["counts"]["qf1"]
        if "torch.rng" in arrays:
            self.compute.restore_random_state(torch.as_tensor(arrays["torch.rng"]))


class ContinuousSacLearner(TorchActorCriticLearner):
    def __init__(self, *args: Any, policy_steps: int, alpha: float, log_alpha: Any | None) -> None:
        super().__init__(*args)
        device = self.compute.device
        self._policy_steps = policy_steps
        self._saved_log_alpha = log_alpha
        first = math.log(alpha) if log_alpha is None else float(log_alpha[0])
        self.log_alpha = torch.full((1,), first, device=device, requires_grad=log_alpha is not None)
        if log_alpha is not None:
            self._alpha_adam = TorchAdam([self.log_alpha], args[3][1], self.compute)

    def _update_actor(self, batch: TransitionTensors) -> None:
        outputs = self.actor(batch.observations)[0]
        for step in range(self._policy_steps):
            loss = self._losses.actor_loss(self, batch, outputs)
            self.actor_adam.step(loss)
            self._policy_metrics[0] = loss.detach()
            # One forward pass serves the temperature and the next step, which uses the same observations.
            if self._alpha_adam is not None or step + 1 < self._policy_steps:
                outputs = self.actor(batch.observations)[0]
            if self._alpha_adam is not None and self._losses.alpha_loss is not None:
                alpha_loss = self._losses.alpha_loss(self, outputs)
                self._alpha_adam.step(alpha_loss)
                self._policy_metrics[1] = alpha_loss.detach()

    def _state_tensors(self) -> list[Tensor]:
        return super()._state_tensors() + ([] if self._alpha_adam is None else self._alpha_adam.state_tensors())

    def losses(self) -> dict[str, float]:
        return super().losses() | {"alpha": self.log_alpha.exp().item()}

    def sync_networks(self) -> None:
        super().sync_networks()
        if self._saved_log_alpha is not None:
            self._saved_log_alpha[0] = self.log_alpha.item()

    def optimizer_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, facts = super().optimizer_state()
        adam = self._alpha_adam
        if adam is not None:
            for kind, (moment,) in (("first", adam.first_moment), ("second", adam.second_moment)):
                arrays[f"adam.{kind}.log_alpha"] = moment.cpu().numpy().astype(float)
            facts["counts"]["log_alpha"] = adam.count
        return arrays, facts

    def restore(self, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        super().restore(arrays, facts)
        adam = self._alpha_adam
        if adam is not None:
            for kind, (moment,) in (("first", adam.first_moment), ("second", adam.second_moment)):
                moment.copy_(torch.as_tensor(arrays[f"adam.{kind}.log_alpha"]))
            adam.count = facts["counts"]["log_alpha"]


class DeterministicActorLearner(TorchActorCriticLearner):
    """The learner of TD3 and DDPG."""

    def _update_actor(self, batch: TransitionTensors) -> None:
        loss = self._losses.actor_loss(self, batch)
        self.actor_adam.step(loss)
        self._policy_metrics[0] = loss.detach()
