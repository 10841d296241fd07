"""Policies of trained agents, for evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.learners import devices
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    from torch import Tensor

    from mosaic.worker.checkpoints import Checkpoint

Array = npt.NDArray[Any]
Outputs = Callable[[Array], Array]
"""A network: observations to one row of outputs each."""

Sample = Callable[[Array, np.random.Generator | None], Array]
"""Samples actions [rows, actions] for an actor's outputs; without a generator returns the best ones."""


class GreedyPolicy:
    """Selects the action with the highest value; unless `deterministic`, with epsilon as at the end of training."""

    def __init__(self, values: Outputs, first_action: int, epsilon: float) -> None:
        self._values, self._first_action, self._epsilon = values, first_action, epsilon

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        values = self._values(observations)
        actions = values.argmax(1)
        if not deterministic:
            is_random = rng.random(len(actions)) < self._epsilon
            actions = np.where(is_random, rng.integers(values.shape[1], size=len(actions)), actions)
        return np.asarray(actions + self._first_action)


class CategoricalPolicy:
    """Samples actions from the softmax distribution of the logits, or returns the most likely ones."""

    def __init__(self, logits: Outputs, first_action: int) -> None:
        self._logits, self._first_action = logits, first_action

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        logits = self._logits(observations)
        scores = logits if deterministic else logits + rng.gumbel(size=logits.shape)
        return np.asarray(scores.argmax(1) + self._first_action)


class MultiCategoricalPolicy:
    """Makes several independent choices: for each, the most likely action or a sample of its logits' softmax."""

    def __init__(self, logits: Outputs, counts: Array, first: Array) -> None:
        """`counts` and `first` have the shape of an action: the number of values of each choice, and the lowest."""
        self._logits, self._counts, self._first = logits, counts, first

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        logits = self._logits(observations)
        scores = logits if deterministic else logits + rng.gumbel(size=logits.shape)
        choices = [part.argmax(1) for part in np.split(scores, np.cumsum(self._counts)[:-1], 1)]
        return np.asarray(np.stack(choices, 1).reshape(-1, *self._first.shape) + self._first, self._first.dtype)


class BoundedPolicy:
    """Samples continuous actions within their bounds, or returns the best ones if `deterministic`."""

    def __init__(self, actor: Outputs, sample: Sample, low: Array, high: Array) -> None:
        self._actor, self._sample, self._low, self._high = actor, sample, low, high

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        actions = self._sample(self._actor(observations), None if deterministic else rng)
        clipped = np.clip(actions.reshape(-1, *self._low.shape), self._low, self._high)
        return np.asarray(clipped.astype(self._low.dtype))


def image_network(
    network: Callable[[Tensor], Tensor], channels: int = FRAME_STACK, side: int = FRAME_SIZE_PX
) -> Outputs:
    """Return a torch network as a function of images [rows, channels, side, side], computed on the CPU."""
    import torch

    from cleanrl_worker.learners.torch_conv import channels_last

    torch.set_num_threads(devices.thread_count())
    expected = (channels, side, side)

    def outputs(observations: Array) -> Array:
        if observations.shape[1:] != expected:
            raise ValueError(f"observations are {observations.shape[1:]}; expected {expected}")
        with torch.no_grad():
            return np.asarray(network(channels_last(torch.as_tensor(observations))).numpy())

    return outputs


def greedy_image_policy(checkpoint: Checkpoint, values: Callable[[Tensor], Tensor]) -> GreedyPolicy:
    """Return the policy of a network that gives the value of each action."""
    facts = checkpoint.facts
    return GreedyPolicy(image_network(values), facts["first_action"], facts["config"]["end_e"])
