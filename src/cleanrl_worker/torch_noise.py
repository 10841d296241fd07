"""Noisy layers: weights with learned noise, so that the network itself explores.

A weight is mu + sigma * noise. The noise is factorized (Fortunato et al., "Noisy Networks for Exploration",
arXiv:1706.10295): one number per input and one per output, and a weight's noise is their product. A layer of a million
weights thus draws a few thousand numbers, and the product matrix is never materialized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

Layers = Mapping[str, tuple[int, int]]
"""Numbers of outputs and inputs of each layer."""


class FactorizedNoise:
    """The noise of all noisy layers of a network, in fixed memory."""

    def __init__(self, layers: Layers, device: torch.device) -> None:
        sizes = [size for layer in layers.values() for size in layer]
        self.flat = torch.zeros(sum(sizes), device=device)
        parts = torch.split(self.flat, sizes)
        self.parts = dict(zip(layers, zip(parts[::2], parts[1::2], strict=True), strict=True))
        """Output noise and input noise of each layer."""

    def resample(self) -> None:
        self.flat.normal_()
        self.flat.copy_(self.flat.sign() * self.flat.abs().sqrt())

    def to_array(self) -> Any:
        """Return a copy of all noise."""
        return np.array(self.flat.cpu().numpy())

    def copy_from(self, array: Any) -> None:
        self.flat.copy_(torch.as_tensor(array))


def noisy_linear(
    weights: Mapping[str, Tensor], noise: FactorizedNoise | None, name: str, activations: Tensor
) -> Tensor:
    """Return a layer's outputs: (mu + sigma * noise) x + bias; without noise only the mean weights are used."""
    means = linear(activations, weights[f"{name}.weight_mu"], weights[f"{name}.bias_mu"])
    if noise is None:
        return means
    outputs, inputs = noise.parts[name]
    noisy_part = linear(activations * inputs, weights[f"{name}.weight_sigma"], weights[f"{name}.bias_sigma"])
    return torch.addcmul(means, noisy_part, outputs)
