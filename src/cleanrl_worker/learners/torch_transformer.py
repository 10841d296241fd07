"""A Transformer-XL as episodic memory, in torch, and PPO's learner for networks with it.

The memory of a step is the input of each layer at that step. A table on the device holds the memories of a rollout and
of the steps before it that windows reach back to, so that a row of a batch needs only three numbers to find its window.
Imports only torch, numpy and modules that need nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cleanrl_worker.learners.autograd_learners import PpoAutogradLearner, PpoLoss
from cleanrl_worker.learners.conv_network import KERNEL_SIZES_AND_STRIDES
from cleanrl_worker.learners.torch_backend import InferenceStep, TorchAdam, TorchContext

Array = Any
WEIGHT_DECAY = 0.01
"""The default of torch's AdamW."""
CHANNELS = (32, 64, 64)
"""Output channels of the convolutions."""
LOCATORS = 3
"""What follows an observation in a row: environment, position in the table, step of the episode."""


class TransformerSizes(NamedTuple):
    layers: int
    heads: int
    dim: int
    window: int
    """Memories that a step attends to, its own included, which is masked."""
    encoding: str
    """The positional encoding: "", "absolute" or "learned"."""
    max_episode_steps: int
    image: tuple[int, int, int] | None = None
    """Height, width and channels of an observation, if it is an image."""
    reconstructs: bool = False
    """Whether observations are reconstructed; needs images."""


class TransformerLosses(NamedTuple):
    """Losses of the last minibatch; `clipfrac` is the mean over the update."""

    value_loss: float
    policy_loss: float
    entropy: float
    old_approx_kl: float
    approx_kl: float
    clipfrac: float
    loss: float
    reconstruction_loss: float


def orthogonal(layer: Any, gain: float = math.sqrt(2)) -> Any:
    nn.init.orthogonal_(layer.weight, gain)
    return layer


def conv_sides(side: int) -> list[int]:
    """Return the side of an image before and after each convolution."""
    sides = [side]
    for kernel, stride in KERNEL_SIZES_AND_STRIDES:
        sides.append((sides[-1] - kernel) // stride + 1)
    return sides


class Attention(nn.Module):
    """Multi-head attention of one query over a window; the heads share their projections."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        size = dim // heads
        self.heads, self.scale = heads, dim**-0.5
        self.values, self.keys, self.queries = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.fc_out = nn.Linear(dim, dim)

    def forward(self, window: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        parts = window.view(*window.shape[:2], self.heads, -1)
        queries = self.queries(query.view(len(query), self.heads, -1))
        energies = torch.einsum("nhd,nkhd->nhk", queries, self.keys(parts))
        # Not minus infinity: in the first step of an episode everything is masked, and the weights are equal.
        weights = torch.softmax(energies.masked_fill(~mask[:, None], -1e20) * self.scale, 2)
        attended: Tensor = self.fc_out(torch.einsum("nhk,nkhd->nhd", weights, self.values(parts)).flatten(1))
        return attended


class Layer(nn.Module):
    """Attention and a fully connected layer, each with layer norm before it and a skip connection."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(dim, heads)
        self.layer_norm_q, self.norm_kv, self.layer_norm_attn = (nn.LayerNorm(dim) for _ in range(3))
        self.fc_projection = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())

    def forward(self, window: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        attended: Tensor = query + self.attention(self.norm_kv(window), self.layer_norm_q(query), mask)
        projected: Tensor = self.fc_projection(self.layer_norm_attn(attended))
        return attended + projected


class TransformerModule(nn.Module):
    """Actor and critic on an encoder and a Transformer-XL, with CleanRL's names.

    A row of its inputs is an observation and where its memories are: environment, position in the table, step of the
    episode.
    """

    memory: Tensor
    inverse_frequencies: Tensor

    def __init__(self, inputs: int, counts: Sequence[int], sizes: TransformerSizes) -> None:
        """`counts` are the numbers of actions of each choice."""
        super().__init__()
        self.sizes, dim = sizes, sizes.dim
        self.encoder = orthogonal(nn.Linear(inputs, dim)) if sizes.image is None else self._convolutions(sizes.image)
        self.transformer = nn.Module()
        if sizes.encoding == "learned":
            self.transformer.pos_embedding = nn.Parameter(torch.randn(sizes.max_episode_steps, dim))
        self.transformer.transformer_layers = nn.ModuleList(Layer(dim, sizes.heads) for _ in range(sizes.layers))
        self.hidden_post_trxl = nn.Sequential(orthogonal(nn.Linear(dim, dim)), nn.ReLU())
        self.actor_branches = nn.ModuleList(orthogonal(nn.Linear(dim, count), 0.1) for count in counts)
        self.critic = orthogonal(nn.Linear(dim, 1), 1)
        if sizes.reconstructs:
            assert sizes.image is not None
            self.transposed_cnn = self._transposed_convolutions(sizes.image)
        self.register_buffer("inverse_frequencies", 1e4 ** (-torch.arange(0, dim, 2.0) / dim), persistent=False)
        self.register_buffer("memory", torch.zeros(0), persistent=False)

    def _convolutions(self, image: tuple[int, int, int]) -> nn.Sequential:
        *_, height = conv_sides(image[0])
        *_, width = conv_sides(image[1])
        parts: list[nn.Module] = []
        for (kernel, stride), inputs, outputs in zip(
            KERNEL_SIZES_AND_STRIDES, (image[2], *CHANNELS), CHANNELS, strict=False
        ):
            parts += [orthogonal(nn.Conv2d(inputs, outputs, kernel, stride)), nn.ReLU()]
        dense = orthogonal(nn.Linear(CHANNELS[-1] * height * width, self.sizes.dim))
        return nn.Sequential(*parts, nn.Flatten(), dense, nn.ReLU())

    def _transposed_convolutions(self, image: tuple[int, int, int]) -> nn.Sequential:
        (*_, height), (*_, width) = conv_sides(image[0]), conv_sides(image[1])
        shape = (CHANNELS[-1], height, width)
        parts: list[nn.Module] = [orthogonal(nn.Linear(self.sizes.dim, math.prod(shape))), nn.ReLU()]
        parts.append(nn.Unflatten(1, shape))
        channels = (*CHANNELS[::-1], image[2])
        for index, (kernel, stride) in enumerate(reversed(KERNEL_SIZES_AND_STRIDES)):
            parts += [orthogonal(nn.ConvTranspose2d(channels[index], channels[index + 1], kernel, stride)), nn.ReLU()]
        return nn.Sequential(*parts[:-1], nn.Sigmoid())

    # --- memory

    @property
    def first_position(self) -> int:
        """The position in the table of the first step of a rollout."""
        return self.sizes.window - 1

    def allocate_memory(self, rows: int, steps: int) -> None:
        """Allocate the table [rows, positions, layers, dim] for rollouts of this number of steps, all zeros."""
        sizes = self.sizes
        shape = (rows, self.first_position + steps, sizes.layers, sizes.dim)
        self.memory = torch.zeros(shape, device=self.inverse_frequencies.device)

    def begin_rollout(self) -> None:
        """Move the memories of the latest steps to the start of the table."""
        kept = self.first_position
        self.memory[:, :kept] = self.memory[:, self.memory.shape[1] - kept :].clone()

    def _window(self, env: Tensor, position: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the memories [rows, window, layers, dim], the steps of the episode they are from, and their mask."""
        window = self.sizes.window
        steps = (step - self.first_position).clamp(min=0)[:, None] + torch.arange(window, device=step.device)
        mask = steps < step[:, None]
        positions = torch.where(mask, position[:, None] - step[:, None] + steps, 0)
        memories = self.memory.flatten(0, 1)[env[:, None] * self.memory.shape[1] + positions]
        return memories.masked_fill(~mask[..., None, None], 0), steps, mask

    def _positions(self, steps: Tensor) -> Tensor | float:
        """Return the positional encoding [rows, window, 1, dim] of steps of an episode."""
        last = self.sizes.max_episode_steps - 1
        if self.sizes.encoding == "learned":
            return self.transformer.pos_embedding[steps.clamp(max=last)].unsqueeze(2)  # type: ignore[index]
        if self.sizes.encoding == "absolute":
            angles = (last - steps)[..., None] * self.inverse_frequencies
            return torch.cat([angles.sin(), angles.cos()], -1).unsqueeze(2)
        return 0.0

    # --- the network

    def images(self, observations: Tensor) -> Tensor:
        """Return flat observations as images [rows, channels, height, width] between 0 and 1."""
        assert self.sizes.image is not None
        return observations.reshape(-1, *self.sizes.image).permute(0, 3, 1, 2) / 255

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the actor's outputs, the values [rows], the features that they are of, and the new memories."""
        observations = inputs[:, :-LOCATORS]
        memories, steps, mask = self._window(*inputs[:, -LOCATORS:].long().unbind(1))
        memories = memories + self._positions(steps)
        features = self.encoder(observations if self.sizes.image is None else self.images(observations))
        new = []
        layers: Any = self.transformer.transformer_layers
        for index, layer in enumerate(layers):
            new.append(features.detach())
            features = layer(memories[:, :, index], features, mask)
        features = self.hidden_post_trxl(features)
        outputs = torch.cat([branch(features) for branch in self.actor_branches], 1)
        return outputs, self.critic(features)[:, 0], features, torch.stack(new, 1)

    def evaluate(self, inputs: Tensor) -> Tensor:
        """Return the actor's outputs and the value of each row, one after the other."""
        outputs, values, _, _ = self(inputs)
        return torch.cat([outputs, values[:, None]], 1)

    def step(self, inputs: Tensor) -> Tensor:
        """Return the same and write the new memories to the table."""
        outputs, values, _, memories = self(inputs)
        env, position, _ = inputs[:, -LOCATORS:].long().unbind(1)
        self.memory[env, position] = memories
        return torch.cat([outputs, values[:, None]], 1)


class TorchAdamW(TorchAdam):
    """Adam with decoupled weight decay (arXiv:1711.05101)."""

    @torch.no_grad()
    def _apply_gradients(self) -> None:
        torch._foreach_mul_(self.parameters, 1 - self._device_learning_rate * WEIGHT_DECAY)
        super()._apply_gradients()


class TransformerLearner(PpoAutogradLearner):
    """PPO's learner for rows whose memories are in a table."""

    module: TransformerModule

    def __init__(
        self, network: Any, module: nn.Module, loss: PpoLoss, config: Any, settings: Any, compute: TorchContext
    ) -> None:
        """`settings` are those of the loss; the coefficient of its entropy changes during training."""
        settings.ent_coef = torch.zeros((), device=compute.device)
        super().__init__(network, module, loss, config.minibatch_size, settings, compute)
        self._epsilon, self._optimizer = 1e-8, TorchAdamW
        self._metrics = torch.zeros(len(TransformerLosses._fields), device=compute.device)
        self.module.allocate_memory(config.num_envs, config.num_steps)

    def begin_rollout(self, ent_coef: float) -> None:
        self._settings.ent_coef.fill_(ent_coef)  # type: ignore[attr-defined]
        self.module.begin_rollout()

    def step(self, rows: int) -> InferenceStep:
        """Return a step with the latest weights, which writes the memories of this number of rows."""
        shape = (rows, self._observation_size)
        tables = lambda: (self.module.memory,)  # noqa: E731
        return InferenceStep(shape, torch.float32, self._outputs + 1, self.module.step, self.compute, tables)

    def values(self, inputs: Array) -> Array:
        """Return the values of any number of rows."""
        with torch.no_grad():
            return self.module.evaluate(torch.as_tensor(inputs, device=self.compute.device))[:, -1].cpu().numpy()

    @property
    def latest_memories(self) -> Tensor:
        """Those that the next rollout continues with."""
        return self.module.memory[:, self.module.memory.shape[1] - self.module.first_position :]

    def restore_memories(self, memories: Array) -> None:
        self.latest_memories.copy_(torch.as_tensor(memories))

    def losses(self) -> Any:
        losses = TransformerLosses(*self._metrics.tolist())
        return losses._replace(clipfrac=self._sums[0].item() / self._updates)
