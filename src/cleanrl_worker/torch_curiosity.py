"""Random network distillation over Atari pictures, in torch: PPO with two values, and a network that predicts another.

Needs torch and numpy, and nothing of ours that needs more.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, relu_
from torch.nn.functional import conv2d, leaky_relu_, linear

from cleanrl_worker.pictures import KERNELS
from cleanrl_worker.torch_backend import Compute, Step
from cleanrl_worker.torch_pictures import (
    EPSILON,
    FIGURES,
    Learner,
    PolicyRolloutSettings,
    Window,
    as_arrays,
    as_tensors,
    channels_last,
    looked_at,
    policy_loss,
)

Array = Any
PREDICTOR, TARGET = "predictor", "target"
BOUND = 5.0
"""Normalised pictures are cut to plus and minus this."""
CHUNK = 512
"""Pictures that the target describes at once: more only take more memory."""


def judged_twice(weights: Mapping[str, Tensor], pictures: Tensor) -> Tensor:
    """The actor's logits, the value of rewards and, last, that of surprises: [rows, actions + 2]."""
    hidden = relu_(_through(weights, "network.9", looked_at(weights, pictures)))
    logits = _through(weights, "actor.2", relu_(_through(weights, "actor.0", hidden)))
    features = relu_(_through(weights, "extra_layer.0", hidden)) + hidden
    heads = torch.cat([weights["critic_ext.weight"], weights["critic_int.weight"]])
    values = linear(features, heads, torch.cat([weights["critic_ext.bias"], weights["critic_int.bias"]]))
    return torch.cat([logits, values], 1)


def described(weights: Mapping[str, Tensor], name: str, pictures: Tensor) -> Tensor:
    """What the predictor or the target says [rows, features] of normalised pictures [rows, 1, 84, 84]."""
    below = pictures
    for number, (_, stride) in enumerate(KERNELS):
        layer = f"{name}.{2 * number}"
        below = leaky_relu_(conv2d(below, weights[f"{layer}.weight"], weights[f"{layer}.bias"], stride=stride))
    below = _through(weights, f"{name}.7", below.flatten(1))
    for layer in (f"{name}.9", f"{name}.11") if name == PREDICTOR else ():
        below = _through(weights, layer, relu_(below))
    return below


def _through(weights: Mapping[str, Tensor], layer: str, below: Tensor) -> Tensor:
    return linear(below, weights[f"{layer}.weight"], weights[f"{layer}.bias"])


class CuriousLearner(Learner):
    """Acts, judges, is surprised, and improves policy and predictor on a rollout, minibatch by minibatch."""

    def __init__(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], settings: PolicyRolloutSettings, compute: Compute
    ) -> None:
        learned = {name: part for name, part in arrays.items() if not name.startswith(f"{TARGET}.")}
        super().__init__(learned, settings.learning_rate, EPSILON, compute)
        fixed = {name: part for name, part in arrays.items() if name not in learned}
        self._target = as_tensors(fixed, compute.device, is_learned=False)
        self._settings = settings
        device, total = compute.device, settings.batch_size
        outputs = len(self.weights["actor.2.bias"]) + 2
        self.act = Window((settings.num_envs, *shape), outputs, self._judge, compute)
        channels, *sides = shape
        columns = ("log_probs", "advantages", "returns", "values", "int_returns")
        self._batch = SimpleNamespace(
            pictures=torch.zeros(total, *sides, channels, dtype=torch.uint8, device=device),
            arrived=torch.zeros(total, *sides, dtype=torch.uint8, device=device),
            features=torch.zeros(total, len(self._target[f"{TARGET}.7.bias"]), device=device),
            actions=torch.zeros(total, dtype=torch.int64, device=device),
            **{name: torch.zeros(total, device=device) for name in columns},
        )
        self._mean = torch.zeros(*sides, device=device)
        self._deviation = torch.ones(*sides, device=device)
        self._order = torch.zeros(settings.minibatch_size, dtype=torch.int64, device=device)
        self._is_taught = torch.zeros(settings.minibatch_size, device=device)
        """1 for rows that the predictor learns from."""
        self._figures = torch.zeros(len(FIGURES) + 1, device=device)
        self._norms = torch.zeros((), device=device)
        """Of the gradients of the update so far, added up."""
        self._step = Step(self._improve, self._kept, compute)

    def arrays(self) -> dict[str, Array]:
        return {**super().arrays(), **as_arrays(self._target)}

    def _judge(self, pictures: Tensor) -> Tensor:
        return judged_twice(self.weights, pictures)

    def values(self, observations: Array) -> Array:
        """Of rewards, for any number of observations [rows, channels, 84, 84]."""
        with torch.no_grad():
            pictures = channels_last(torch.as_tensor(observations, device=self.compute.device))
            return self._judge(pictures)[:, -2].cpu().numpy()

    # --- surprise

    def look_by(self, mean: Array, variance: Array) -> None:
        """From now on pictures are normalised by these."""
        self._mean.copy_(torch.as_tensor(mean))
        self._deviation.copy_(torch.as_tensor(variance).sqrt())

    def _normalised(self, pictures: Tensor) -> Tensor:
        return ((pictures.float() - self._mean) / self._deviation).clamp(-BOUND, BOUND)[:, None]

    def surprises(self, arrived: Array) -> Array:
        """How far the prediction is from the target, for newest pictures [rows, 84, 84]."""
        with torch.no_grad():
            pictures = self._normalised(torch.from_numpy(arrived).to(self.compute.device))
            miss = described(self._target, TARGET, pictures) - described(self.weights, PREDICTOR, pictures)
            return (miss.square().sum(1) / 2).cpu().numpy()

    # --- learning

    def begin(self, learning_rate: float, pictures: Array, arrived: Array, **columns: Array) -> None:
        """An update on a rollout: what was seen, the newest pictures it led to, `actions` and so on [rows]."""
        self.adam.set_learning_rate(learning_rate)
        self._batch.pictures.copy_(torch.from_numpy(pictures).permute(0, 2, 3, 1))
        self.compute.send(self._batch.arrived, arrived)
        for name, column in columns.items():
            self.compute.send(getattr(self._batch, name), column)
        self._norms.zero_()

    def describe(self, first: int) -> None:
        """What the target says of `CHUNK` rows. It never changes, so that once is enough for all passes over them."""
        rows = slice(first, first + CHUNK)
        with torch.no_grad():
            pictures = self._normalised(self._batch.arrived[rows])
            self._batch.features[rows] = described(self._target, TARGET, pictures)

    def update(self, rows: Array, is_taught: Array) -> None:
        """One step on a minibatch, of which the predictor learns from some rows. Nobody waits for it."""
        self.compute.send(self._order, rows)
        self.compute.send(self._is_taught, is_taught)
        self._step()

    def _improve(self) -> None:
        batch = SimpleNamespace(**{name: part[self._order] for name, part in vars(self._batch).items()})
        loss, figures, forward_loss = curious_loss(
            self._judge(batch.pictures),
            described(self.weights, PREDICTOR, self._normalised(batch.arrived)),
            batch,
            self._is_taught,
            self._settings,
        )
        norm = self.adam.clipped_step(loss, self._settings.max_grad_norm)
        self._figures.copy_(torch.cat([figures, forward_loss[None]]))
        self._norms += norm

    def _kept(self) -> list[Tensor]:
        return [*self.adam.kept(), self._figures, self._norms]

    def losses(self) -> tuple[dict[str, float], bool]:
        """Of the newest step; whether every gradient was finite. Waits for the device."""
        figures = dict(zip((*FIGURES, "fwd_loss"), self._figures.tolist(), strict=True))
        return figures, float(self._norms) < float("inf")


def curious_loss(
    outputs: Tensor, predicted: Tensor, batch: Any, is_taught: Tensor, settings: PolicyRolloutSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's with a second value, and the predictor's; PPO's figures, and the predictor's loss."""
    loss, figures = policy_loss(outputs[:, :-1], batch, settings)
    second = 0.5 * (outputs[:, -1] - batch.int_returns).square().mean()
    misses = (predicted - batch.features).square().mean(1)
    forward_loss = (misses * is_taught).sum() / is_taught.sum().clamp(min=1)
    figures = torch.cat([figures[:1] + second.detach(), figures[1:]])  # what is reported is the loss of both values
    return loss + settings.vf_coef * second + forward_loss, figures, forward_loss.detach()
