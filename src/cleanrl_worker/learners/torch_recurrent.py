"""An LSTM whose state is reset where an episode starts, in torch, and PPO's learner for networks with it.

The input products of the LSTM are computed for all steps at once; only the small recurrent products remain per step.
Imports only torch, numpy and modules that need nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from cleanrl_worker.learners.protocols import RolloutSettings
from cleanrl_worker.learners.torch_backend import TorchContext
from cleanrl_worker.learners.torch_conv import Loss, PpoImageLearner, Weights, channels_last

Array = Any
RecurrentForward = Callable[[Weights, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""A network with an LSTM: outputs and new state from weights, images, state and continue mask [steps, rows]."""


def lstm_forward(
    weights: Mapping[str, Tensor], features: Tensor, state: Tensor, continue_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the outputs [steps, rows, units] for features [steps, rows, inputs], and the final state [2, rows, units].

    `continue_mask` [steps, rows] is 0 where an episode starts: the state is reset there.
    """
    bias = weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
    inputs = linear(features, weights["lstm.weight_ih_l0"], bias)
    recurrent_weight = weights["lstm.weight_hh_l0"].t()
    units = state.shape[2]
    outputs = []
    for step_input, step_mask in zip(inputs.unbind(), continue_mask.unsqueeze(2).unbind(), strict=True):
        hidden, cell = (state * step_mask).unbind()
        gates = torch.addmm(step_input, hidden, recurrent_weight)
        # The gates in torch's order: input, forget, cell, output.
        input_gate, forget_gate, _, output_gate = torch.sigmoid(gates).chunk(4, 1)
        cell = forget_gate * cell + input_gate * torch.tanh(gates[:, 2 * units : 3 * units])
        hidden = output_gate * torch.tanh(cell)
        state = torch.stack([hidden, cell])
        outputs.append(hidden)
    return torch.stack(outputs), state


class RecurrentLearner(PpoImageLearner):
    """PPO's learner with backpropagation through time: a minibatch is all steps of some environments."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        shape: tuple[int, ...],
        forward: RecurrentForward,
        loss: Loss,
        settings: RolloutSettings,
        compute: TorchContext,
    ) -> None:
        """`loss` also gets the state of each environment at the start of the rollout."""
        self._recurrent_network = forward
        device, envs = compute.device, settings.num_envs
        units = len(arrays["lstm.bias_ih_l0"]) // 4
        self.state = torch.zeros(2, envs, units, device=device)
        """Hidden and cell state of each environment."""
        mask_host = compute.host_buffer(envs, dtype=torch.float32)
        self._continue_mask = compute.device_buffer(mask_host)
        self._host_continue_mask = mask_host.numpy()
        self._mask_buffers = (self._continue_mask, mask_host)
        self._rollout_start_state = torch.zeros_like(self.state)
        """The state at the start of the rollout."""
        super().__init__(arrays, shape, self._step_network, loss, settings, compute)
        self._batch.continue_mask = torch.zeros(settings.batch_size, device=device)
        self._env_indices = torch.zeros(
            settings.minibatch_size * envs // settings.batch_size, dtype=torch.int64, device=device
        )
        steps = settings.batch_size // envs
        self._first_rows = np.arange(steps)[:, None] * envs

    def _inference_options(self) -> dict[str, Any]:
        return {"state_tensors": lambda: (self.state,), "extra_inputs": [self._mask_buffers]}

    def _step_network(self, weights: Weights, images: Tensor) -> Tensor:
        """Run one step of the network and update the state."""
        outputs, state = self._recurrent_network(weights, images, self.state, self._continue_mask[None])
        self.state.copy_(state)
        return outputs

    def set_continue_mask(self, continue_mask: Array) -> None:
        """Set before acting which environments continue their episode (1) and which start a new one (0)."""
        self._host_continue_mask[...] = continue_mask

    def begin_rollout(self) -> None:
        """Save the state at the start of a rollout."""
        self._rollout_start_state.copy_(self.state)

    def next_values(self, env_indices: Array, observations: Array, continue_mask: Array) -> Array:
        """Return the values of next observations [rows, channels, 84, 84] of some environments; keeps the state."""
        device = self.compute.device
        with torch.no_grad():
            images = channels_last(torch.as_tensor(observations, device=device))
            state = self.state[:, torch.as_tensor(env_indices, device=device)]
            mask = torch.as_tensor(continue_mask, dtype=torch.float32, device=device)
            outputs, _ = self._recurrent_network(self.weights, images, state, mask[None])
            return outputs[:, -1].cpu().numpy()

    def update(self, rows: Array) -> None:
        """Do one gradient step on all rows of the environments with these indices."""
        self.compute.copy_to_device(self._env_indices, rows)
        super().update((self._first_rows + rows).ravel())

    def _loss(self, batch: SimpleNamespace) -> tuple[Tensor, Sequence[Any]]:
        return self._loss_function(self.weights, batch, self._rollout_start_state[:, self._env_indices])
