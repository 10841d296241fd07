"""Value heads in torch: return distributions by atoms (C51, Rainbow) or quantiles (QR-DQN, TQC), noise (Rainbow)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, smooth_l1_loss

from cleanrl_worker.learners.value_kernels import MIN_PROBABILITY

# --- return distributions over fixed values, the atoms


def mean_returns(pmfs: Tensor, atoms: Tensor) -> Tensor:
    """Return the mean return of each action [rows, actions] for probabilities [rows, actions, atoms]."""
    return (pmfs * atoms).sum(2)


def select_actions(pmfs: Tensor, actions: Tensor) -> Tensor:
    """Return the probabilities of one action per row, [rows, atoms]."""
    return pmfs.gather(1, actions[:, None, None].expand(-1, 1, pmfs.shape[2]))[:, 0]


def project_onto_atoms(pmfs: Tensor, shifted_values: Tensor, atoms: Tensor) -> Tensor:
    """Project probabilities [rows, atoms] of shifted values onto the atoms: each is split between its two neighbors."""
    last = len(atoms) - 1
    positions = (shifted_values.clamp(atoms[0], atoms[last]) - atoms[0]) * (last / (atoms[last] - atoms[0]))
    # The weight of each value for each atom: 1 on it, 0 at its neighbors, linear between. One product instead of
    # scattered sums, which are not deterministic on a GPU.
    indices = torch.arange(last + 1, device=atoms.device)
    weights = (1 - (positions[:, None, :] - indices[:, None]).abs()).clamp(min=0)
    return torch.matmul(weights, pmfs[:, :, None])[:, :, 0]


def cross_entropies(targets: Tensor, predictions: Tensor) -> Tensor:
    """Return the cross-entropy of each row."""
    return -(targets * predictions.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY).log()).sum(1)


# --- quantiles of the return


def quantile_huber_losses(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each predicted quantile [rows, quantiles] for samples of the return [rows, samples].

    With n quantiles, the i-th is that of τ_i = (i + 1/2) / n. For an error u = target - prediction its loss is
    |τ_i - 1{u < 0}| H(u), averaged over the samples; H is the Huber loss with threshold 1.
    """
    count = predictions.shape[-1]
    fractions = (torch.arange(count, device=predictions.device) + 0.5) / count
    errors = targets[..., None, :] - predictions[..., None]
    huber = smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")
    weights = (fractions[:, None] - (errors.detach() < 0).float()).abs()
    return (weights * huber).mean(-1)


# --- noisy layers: the network itself explores
#
# A weight is mu + sigma * noise. The noise is factorized (Fortunato et al., "Noisy Networks for Exploration",
# arXiv:1706.10295): one number per input and one per output, and a weight's noise is their product. A layer of a
# million weights thus draws a few thousand numbers, and the product matrix is never materialized.

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
