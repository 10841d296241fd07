"""Networks for observations that are images of any size: convolutions before the fully connected layers, in torch.

Images come as flat rows, as all other observations do, of bytes or of floats with their values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cleanrl_worker.learners.architecture import Architecture, find_sides
from cleanrl_worker.learners.conv_network import CHANNELS, KERNEL_SIZES_AND_STRIDES
from cleanrl_worker.learners.torch_dense import ACTIVATIONS, make_body


class ImageFeatures(nn.Module):
    """Three convolutions, or the user's own network, over the image in a row; the numbers after it are passed on."""

    def __init__(self, shape: tuple[int, ...], body: str | None) -> None:
        super().__init__()
        sides = find_sides(shape)
        channels = [axis for axis in range(len(shape)) if axis not in sides]
        self._shape, self._axes = shape, [axis + 1 for axis in (*channels, *sides)]
        self._size = math.prod(shape)
        height, width = (shape[axis] for axis in sides)
        self._image_shape = self._size // (height * width), height, width
        self.network: nn.Module
        if body is not None:
            self.network, self.features = make_body(body, self._image_shape)
            return
        layers: list[nn.Module] = []
        inputs = self._image_shape[0]
        for (kernel, stride), outputs in zip(KERNEL_SIZES_AND_STRIDES, CHANNELS, strict=True):
            layers += [nn.Conv2d(inputs, outputs, kernel, stride), nn.ReLU()]
            inputs, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.network, self.features = nn.Sequential(*layers, nn.Flatten()), inputs * height * width

    def forward(self, rows: Tensor) -> Tensor:
        images = rows[:, : self._size].reshape(-1, *self._shape).permute(0, *self._axes)
        features: Tensor = self.network(images.reshape(-1, *self._image_shape).float() / 255)
        return features if rows.shape[1] == self._size else torch.cat([features, rows[:, self._size :]], 1)


def image_layers(architecture: Architecture, inputs: int, outputs: int, head_gain: float | None) -> nn.Sequential:
    """Return convolutions, the hidden layers and a linear head for rows of an image and other numbers.

    With a gain for the head, weights are orthogonal and biases 0; a network of the user's own is left as it is.
    """
    assert architecture.image is not None
    features = ImageFeatures(architecture.image, architecture.body)
    size = features.features + inputs - math.prod(architecture.image)
    _, activation = ACTIVATIONS[architecture.activation]
    dense: list[nn.Module] = []
    for units in architecture.hidden:
        dense += [nn.Linear(size, units), activation()]
        size = units
    head = nn.Linear(size, outputs)
    if head_gain is not None:
        own = () if architecture.body is not None else features.modules()
        for layer in (*own, *dense, head):
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(layer.weight, head_gain if layer is head else math.sqrt(2))
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return nn.Sequential(features, *dense, head)
