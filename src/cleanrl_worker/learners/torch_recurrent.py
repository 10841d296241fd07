"""An LSTM whose state is reset where an episode starts, in torch, and PPO's learners for networks with it.

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

from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.autograd_learners import PpoAutogradLearner
from cleanrl_worker.learners.protocols import RolloutSettings
from cleanrl_worker.learners.torch_backend import InferenceStep, TorchContext
from cleanrl_worker.learners.torch_conv import Loss, PpoImageLearner, Weights, channels_last
from cleanrl_worker.learners.torch_dense import dense_layers

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


# --- for vectors


class RecurrentModule(torch.nn.Module):
    """Actor and critic on shared hidden layers and an LSTM.

    A row of its inputs is an observation, whether its episode continues (1) or starts with it (0), and the LSTM's state
    before it: hidden and cell. So it is a function without a state of its own.
    """

    def __init__(self, architecture: Architecture, observation_size: int, outputs: int, units: int) -> None:
        super().__init__()
        self._sizes = [observation_size, 1, 2 * units]
        self.hidden = dense_layers(architecture, observation_size, 1)[:-1]
        self.lstm = torch.nn.LSTM(architecture.hidden[-1], units)
        self.actor = torch.nn.Linear(units, outputs)
        self.critic = torch.nn.Linear(units, 1)

    def unroll(self, inputs: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the actor's outputs and the values of inputs [steps × rows, …], and the state [rows, …] after them.

        Only the states of the first step are used.
        """
        observations, continue_mask, state = torch.split(inputs, self._sizes, 1)
        rows = len(inputs) // steps
        features = self.hidden(observations).view(steps, rows, -1)
        state = state[:rows].view(rows, 2, -1).transpose(0, 1)
        weights = {f"lstm.{name}": weight for name, weight in self.lstm.named_parameters()}
        outputs, state = lstm_forward(weights, features, state, continue_mask.view(steps, rows))
        outputs = outputs.flatten(0, 1)
        return self.actor(outputs), self.critic(outputs), state.transpose(0, 1).flatten(1)

    def step(self, inputs: Tensor) -> Tensor:
        """Return the actor's outputs, the value and the new state of each row, one after the other."""
        return torch.cat(self.unroll(inputs, 1), 1)


class RecurrentVectorLearner(PpoAutogradLearner):
    """PPO's learner with backpropagation through time: the rows of a minibatch are all steps of some environments."""

    def step(self, rows: int) -> InferenceStep:
        """Return one step of the network with the latest weights, for this number of rows."""
        module: Any = self.module
        inputs = self._observation_size
        # In comparison to its inputs, a value replaces the mask.
        outputs = self._outputs + inputs - module._sizes[0]
        return InferenceStep((rows, inputs), torch.float32, outputs, module.step, self.compute)

    def outputs(self, inputs: Array) -> Array:
        """Return the outputs of a step for any number of rows."""
        module: Any = self.module
        with torch.no_grad():
            return module.step(torch.as_tensor(inputs, device=self.compute.device)).cpu().numpy()
