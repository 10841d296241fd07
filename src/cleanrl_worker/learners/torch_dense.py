"""Fully connected layers in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from cleanrl_worker.learners.architecture import Architecture

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], type[nn.Module]]] = {
    "tanh": (torch.tanh, nn.Tanh),
    "relu": (torch.relu, nn.ReLU),
    "elu": (functional.elu, nn.ELU),
    "gelu": (functional.gelu, nn.GELU),
    "silu": (functional.silu, nn.SiLU),
    "leaky_relu": (functional.leaky_relu, nn.LeakyReLU),
}
"""Each as a function and as a module."""


def dense_layers(architecture: Architecture, inputs: int, outputs: int, has_layer_norm: bool = False) -> nn.Sequential:
    """Return the hidden layers and a linear head."""
    _, activation = ACTIVATIONS[architecture.activation]
    layers: list[nn.Module] = []
    for size in architecture.hidden:
        layers += [nn.Linear(inputs, size), *([nn.LayerNorm(size)] if has_layer_norm else []), activation()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))
