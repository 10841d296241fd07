"""Fully connected layers in torch, and networks of the user's own, which only torch computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import check_shapes, select_by_prefix
from mosaic.contracts.errors import refuse_key
from mosaic.worker.envs.user_modules import import_object

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], type[nn.Module]]] = {
    "tanh": (torch.tanh, nn.Tanh),
    "relu": (torch.relu, nn.ReLU),
    "elu": (functional.elu, nn.ELU),
    "gelu": (functional.gelu, nn.GELU),
    "silu": (functional.silu, nn.SiLU),
    "leaky_relu": (functional.leaky_relu, nn.LeakyReLU),
}
"""Each as a function and as a module."""


def dense_layers(
    architecture: Architecture, inputs: int, outputs: int, has_layer_norm: bool = False, head_gain: float | None = None
) -> nn.Sequential:
    """Return the hidden layers, or the user's own network instead of them, and a linear head.

    After a network of the user's own the head is initialized orthogonally with this gain, or else as torch does; so is
    all that sees an image.
    """
    if architecture.image is not None:
        from cleanrl_worker.learners.torch_image import image_layers

        return image_layers(architecture, inputs, outputs, head_gain)
    if architecture.body is not None:
        body, size = make_body(architecture.body, (inputs,))
        head = nn.Linear(size, outputs)
        if head_gain is not None:
            nn.init.orthogonal_(head.weight, head_gain)
            nn.init.zeros_(head.bias)
        return nn.Sequential(body, head)
    _, activation = ACTIVATIONS[architecture.activation]
    layers: list[nn.Module] = []
    for size in architecture.hidden:
        layers += [nn.Linear(inputs, size), *([nn.LayerNorm(size)] if has_layer_norm else []), activation()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def make_body(name: str, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Return the user's network `module:Class` for inputs of a shape, and the number of its outputs.

    It is created with the number of inputs, or with their shape if that has several dimensions.
    """
    kind, inputs = import_object(name, "network", nn.Module), shape[0] if len(shape) == 1 else shape
    try:
        body: nn.Module = kind(inputs)
        with torch.enable_grad():
            outputs = body(torch.zeros(2, *shape))
    except Exception as error:  # the user's own code raises anything
        cause = f"{type(error).__name__}: {error}"[:500]
        raise refuse_key(
            "network", f"{name} cannot be created with {inputs} and applied to inputs [2, {inputs}]: {cause}."
        ) from error
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != 2:
        found = f"outputs {list(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise refuse_key("network", f"{name} gives {found} for 2 inputs; expected outputs [2, features].")
    buffers = [key for key in body.state_dict() if key not in dict(body.named_parameters())]
    if buffers:
        raise refuse_key(
            "network",
            f"{name} has buffers ({', '.join(buffers[:3])}), which a checkpoint would lack. Use layer norm instead of "
            "batch norm, and register constants with persistent=False.",
        )
    if untrained := _untrained_parameters(body, outputs):
        raise refuse_key(
            "network",
            f"{name} has parameters that would not be trained, because they are frozen or its outputs do not depend on "
            f"them ({', '.join(untrained[:3])}). Remove them, or make frozen ones buffers with persistent=False.",
        )
    return body, outputs.shape[1]


@torch.enable_grad()
def _untrained_parameters(body: nn.Module, outputs: Tensor) -> list[str]:
    """Return the names of the parameters of which the outputs have no gradient; the optimizers need one of each."""
    learned = {name: part for name, part in body.named_parameters() if part.requires_grad}
    gradients: Any = [None] * len(learned)
    if outputs.requires_grad:
        gradients = torch.autograd.grad(outputs.sum(), list(learned.values()), allow_unused=True)
    used = {name for name, gradient in zip(learned, gradients, strict=True) if gradient is not None}
    return [name for name, _ in body.named_parameters() if name not in used]


def probe_body(name: str, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Return the same for its shapes, without using the random numbers of the training."""
    with torch.random.fork_rng(devices=[]):
        return make_body(name, shape)


class ModuleNetwork:
    """A network that only torch computes, with the interface of the numpy networks; a vector is arrays by name."""

    def __init__(self, build: Callable[[], nn.Module], inputs: int, outputs: int, prefix: str = "") -> None:
        self.inputs, self.outputs = inputs, outputs
        with torch.random.fork_rng(devices=[]):
            self.module = build()
        self.actor = "actor_mean" if hasattr(self.module, "actor_mean") else "actor"
        """The actor's name in the module, if that is PPO's."""
        self.parameters = {name: part.detach().numpy() for name, part in self.module.named_parameters()}
        """Views of the module's parameters."""
        self.flat: Any = None
        self.size = sum(part.size for part in self.parameters.values())
        self._build, self._prefix = build, prefix

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize as the constructors of its parts do."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            for part, new in zip(self.module.parameters(), self._build().parameters(), strict=True):
                part.detach().copy_(new)

    initialize_orthogonal = initialize

    def copy_from(self, other: ModuleNetwork) -> None:
        for part, new in zip(self.parameters.values(), other.parameters.values(), strict=True):
            part[...] = new

    def zero_vector(self) -> dict[str, Any]:
        return {name: np.zeros_like(part) for name, part in self.parameters.items()}

    def named_arrays(self, views: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{self._prefix}{name}": np.array(part) for name, part in views.items()}

    def assign(self, views: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        check_shapes({f"{self._prefix}{name}": part.shape for name, part in views.items()}, arrays)
        for name, part in select_by_prefix(self._prefix, arrays).items():
            if name in views:
                views[name][...] = part

    @property
    def log_std(self) -> Any:
        """The logarithms of the standard deviations [outputs, 1] of a Gaussian actor."""
        return self.parameters["actor_logstd"].T

    def __call__(self, observations: Any) -> Any:
        """Return the outputs [rows, outputs] for observations [rows, inputs]."""
        return self._outputs(getattr(self.module, "network", self.module), observations)

    def actor_outputs(self, observations: Any) -> Any:
        return self._outputs(getattr(self.module, self.actor), observations)

    def critic_values(self, observations: Any) -> Any:
        return self._outputs(self.module.critic, observations)[:, 0]

    def _outputs(self, part: Any, observations: Any) -> Any:
        with torch.no_grad():
            return part(torch.as_tensor(observations, dtype=torch.float32)).numpy()
