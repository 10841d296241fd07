"""The kinds of runs."""

from __future__ import annotations

from enum import StrEnum


class RunKind(StrEnum):
    TRAIN = "train"
    """Trains a policy. Scripts are of this kind, too."""
    POLICY_EVAL = "policy_eval"
    """Evaluates a trained policy."""
