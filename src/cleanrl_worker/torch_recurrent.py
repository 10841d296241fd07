"""The network that looks at pictures and remembers, in torch, and PPO's learner over it.

Behind the wide layer lies a long short-term memory. The products with what is seen are made for all steps at once; what
is left for each step is small. Needs torch and numpy, and nothing of ours that needs more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from cleanrl_worker.torch_backend import TorchContext
from cleanrl_worker.torch_conv import (
    PolicyRolloutSettings,
    PpoImageLearner,
    actor_critic_heads,
    channels_last,
    conv_features,
    ppo_loss,
)

Array = Any


def lstm_forward(
    weights: Mapping[str, Tensor], features: Tensor, state: Tensor, continue_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [steps, rows, units] for what is seen [steps, rows, inputs], and the state [2, rows, units] behind them.

    `keeps` [steps, rows] is 0 where an episode begins: nothing from before it is remembered.
    """
    bias = weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
    inputs = linear(features, weights["lstm.weight_ih_l0"], bias)
    back = weights["lstm.weight_hh_l0"].t()
    units = state.shape[2]
    outputs = []
    for given, keep in zip(inputs.unbind(), continue_mask.unsqueeze(2).unbind(), strict=True):
        hidden, cell = (state * keep).unbind()
        gates = torch.addmm(given, hidden, back)
        # In torch's order: what is let in, what is kept, what is new, what is shown.
        let_in, kept, _, shown = torch.sigmoid(gates).chunk(4, 1)
        cell = kept * cell + let_in * torch.tanh(gates[:, 2 * units : 3 * units])
        hidden = shown * torch.tanh(cell)
        state = torch.stack([hidden, cell])
        outputs.append(hidden)
    return torch.stack(outputs), state


class RecurrentLearner(PpoImageLearner):
    """Minibatches are whole stretches of some games, through which what was remembered is learned, too."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        shape: tuple[int, ...],
        settings: PolicyRolloutSettings,
        compute: TorchContext,
    ) -> None:
        device, envs = compute.device, settings.num_envs
        units = len(arrays["lstm.bias_ih_l0"]) // 4
        self.state = torch.zeros(2, envs, units, device=device)
        """What is remembered of each game: hidden and cell state."""
        keeps_host = compute.host_buffer(envs, dtype=torch.float32)
        self._continue_mask = compute.device_buffer(keeps_host)
        self._host_continue_mask = keeps_host.numpy()
        self._mask_buffers = (self._continue_mask, keeps_host)
        self._rollout_start_state = torch.zeros_like(self.state)
        """What was remembered when the rollout began."""
        super().__init__(arrays, shape, settings, compute)
        self._batch.keeps = torch.zeros(settings.batch_size, device=device)
        self._env_indices = torch.zeros(
            settings.minibatch_size * envs // settings.batch_size, dtype=torch.int64, device=device
        )
        steps = settings.batch_size // envs
        self._first_rows = np.arange(steps)[:, None] * envs

    def _inference_options(self) -> dict[str, Any]:
        return {"state_tensors": lambda: (self.state,), "extra_inputs": [self._mask_buffers]}

    def _forward(self, images: Tensor) -> Tensor:
        """Goes on to remember what it sees."""
        seen = conv_features(self.weights, images)
        hidden, state = lstm_forward(self.weights, seen[None], self.state, self._continue_mask[None])
        self.state.copy_(state)
        return actor_critic_heads(self.weights, hidden[0])

    def set_continue_mask(self, continue_mask: Array) -> None:
        """Says before acting which games [environments] go on (1) and which have begun (0)."""
        self._host_continue_mask[...] = continue_mask

    def begin_rollout(self) -> None:
        """A rollout begins."""
        self._rollout_start_state.copy_(self.state)

    def next_values(self, env_indices: Array, observations: Array, continue_mask: Array) -> Array:
        """Of the next observations [rows, channels, 84, 84] of some games; nothing is remembered of them."""
        device = self.compute.device
        with torch.no_grad():
            seen = conv_features(self.weights, channels_last(torch.as_tensor(observations, device=device)))
            state = self.state[:, torch.as_tensor(env_indices, device=device)]
            kept = torch.as_tensor(continue_mask, dtype=torch.float32, device=device)
            hidden, _ = lstm_forward(self.weights, seen[None], state, kept[None])
            return actor_critic_heads(self.weights, hidden[0])[:, -1].cpu().numpy()

    def update(self, rows: Array) -> None:
        """One step on all rows of some games, whose numbers these are."""
        self.compute.copy_to_device(self._env_indices, rows)
        super().update((self._first_rows + rows).ravel())

    def _gradient_step(self) -> None:
        batch = self._minibatch()
        lanes = len(self._env_indices)
        seen = conv_features(self.weights, batch.pictures)
        keeps = batch.keeps.view(-1, lanes)
        hidden, _ = lstm_forward(
            self.weights, seen.view(-1, lanes, seen.shape[1]), self._rollout_start_state[:, self._env_indices], keeps
        )
        loss, figures = ppo_loss(actor_critic_heads(self.weights, hidden.flatten(0, 1)), batch, self._settings)
        self._apply_loss(loss, figures)
