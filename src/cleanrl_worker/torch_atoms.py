"""Return distributions over fixed values, the atoms, in torch; used by C51 and Rainbow."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_PROBABILITY = 1e-5
"""Probabilities are clamped this far from 0 and 1 before the logarithm."""


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
