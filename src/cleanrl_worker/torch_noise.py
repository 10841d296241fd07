"""Layers whose weights carry noise, so that the network itself explores: how much, it learns.

A weight is a mean and a spread times noise. The noise is factorised, as in the paper (Fortunato et al., "Noisy Networks
for Exploration", arXiv:1706.10295): one number for each input and one for each output, and a weight's noise is their
product. So a layer of a million weights draws a few thousand numbers, and the product is never written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

Layers = Mapping[str, tuple[int, int]]
"""Outputs and inputs of each layer."""


class FactorisedNoise:
    """Of all noisy layers of a network, in fixed memory."""

    def __init__(self, layers: Layers, device: torch.device) -> None:
        sizes = [size for layer in layers.values() for size in layer]
        self.flat = torch.zeros(sum(sizes), device=device)
        parts = torch.split(self.flat, sizes)
        self.parts = dict(zip(layers, zip(parts[::2], parts[1::2], strict=True), strict=True))
        """For each layer that of its outputs, and that of its inputs."""

    def resample(self) -> None:
        self.flat.normal_()
        self.flat.copy_(self.flat.sign() * self.flat.abs().sqrt())

    def to_array(self) -> Any:
        """All of it, copied."""
        return np.array(self.flat.cpu().numpy())

    def copy_from(self, array: Any) -> None:
        self.flat.copy_(torch.as_tensor(array))


def noisy_linear(
    weights: Mapping[str, Tensor], noise: FactorisedNoise | None, name: str, activations: Tensor
) -> Tensor:
    """A layer's outputs; without noise those of its mean weights."""
    means = linear(activations, weights[f"{name}.weight_mu"], weights[f"{name}.bias_mu"])
    if noise is None:
        return means
    outputs, inputs = noise.parts[name]
    spread = linear(activations * inputs, weights[f"{name}.weight_sigma"], weights[f"{name}.bias_sigma"])
    return torch.addcmul(means, spread, outputs)
