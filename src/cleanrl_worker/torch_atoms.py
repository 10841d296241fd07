"""Distributions of returns over a row of fixed values, the atoms, in torch. C51 and Rainbow learn these."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_PROBABILITY = 1e-5
"""The logarithm takes no probability nearer to 0 or 1 than this."""


def mean_returns(pmfs: Tensor, atoms: Tensor) -> Tensor:
    """The mean return of each action, [rows, actions], for probabilities [rows, actions, atoms]."""
    return (pmfs * atoms).sum(2)


def select_actions(pmfs: Tensor, actions: Tensor) -> Tensor:
    """The probabilities of one action in each row, [rows, atoms]."""
    return pmfs.gather(1, actions[:, None, None].expand(-1, 1, pmfs.shape[2]))[:, 0]


def project_onto_atoms(pmfs: Tensor, shifted_values: Tensor, atoms: Tensor) -> Tensor:
    """Probabilities [rows, atoms] of values that have moved, laid onto the atoms again: each to its two neighbours."""
    last = len(atoms) - 1
    places = (shifted_values.clamp(atoms[0], atoms[last]) - atoms[0]) * (last / (atoms[last] - atoms[0]))
    # How near each value is to each atom: 1 on it, 0 at its neighbours. One product instead of scattered sums, which
    # would come out differently each time on a GPU.
    numbers = torch.arange(last + 1, device=atoms.device)
    nearness = (1 - (places[:, None, :] - numbers[:, None]).abs()).clamp(min=0)
    return torch.matmul(nearness, pmfs[:, :, None])[:, :, 0]


def cross_entropies(targets: Tensor, predictions: Tensor) -> Tensor:
    """Of each row."""
    return -(targets * predictions.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY).log()).sum(1)
