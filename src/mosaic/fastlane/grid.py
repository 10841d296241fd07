"""Several pictures as one. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .layout import BGRX32

WIDE = 16 / 9
"""The shape of a view that is not known: width by height."""
_HOLE = 6.0
"""How much worse a grid of only holes would be than one that fits: 8 are 2 rows of 4, not 3 of 3."""


SAMPLES = 3
BACKGROUND = 24


class Shape(NamedTuple):
    rows: int
    columns: int


def grid_shape(count: int, view: float = WIDE, cell: float = 1.5) -> Shape:
    """The grid for so many cells that comes nearest to the view's shape; both shapes are width by height."""
    if count <= 1:
        return Shape(1, 1)

    def misfit(shape: Shape) -> float:
        holes = shape.rows * shape.columns - count
        return abs(math.log(shape.columns * cell / (shape.rows * view))) + _HOLE * holes / count

    shapes = [Shape(-(-count // columns), columns) for columns in range(count, 0, -1)]
    return min(shapes, key=misfit)


def as_rgb(image: Any, pixel_format: str) -> Any:
    """A view of the same pixels, red first, without the fourth channel."""
    return image[:, :, 2::-1] if pixel_format == BGRX32 else image[:, :, :3]


def scaled(image: Any, height: int, width: int) -> Any:
    """In another size: each new pixel is the mean of up to nine of those that it covers."""
    if image.shape[:2] == (height, width):
        return image
    down = min(SAMPLES, -(-image.shape[0] // height))
    across = min(SAMPLES, -(-image.shape[1] // width))
    rows = _centres(height * down, image.shape[0])
    columns = _centres(width * across, image.shape[1])
    found = image[rows[:, None], columns]
    if down == across == 1:
        return found
    means = found.reshape(height, down, width, across, 3).mean(axis=(1, 3), dtype=np.float32)
    return means.astype(np.uint8)


def smoothly_scaled(image: Any, height: int, width: int) -> Any:
    """The same for large pictures, by Pillow where it is installed."""
    if image.shape[:2] == (height, width):
        return image
    try:
        from PIL import Image
    except ImportError:
        return scaled(image, height, width)
    made = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(made.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0))


def _centres(count: int, size: int) -> Any:
    return (2 * np.arange(count) + 1) * size // (2 * count)


def fit(width: int, height: int, room_width: int, room_height: int) -> tuple[int, int]:
    """The largest width and height of the same shape that the room holds."""
    scale = min(room_width / width, room_height / height)
    return max(1, int(width * scale)), max(1, int(height * scale))


def compose(
    images: Sequence[Any], shape: Shape, width: int, height: int, scale: Callable[[Any, int, int], Any] = scaled
) -> Any:
    """The images (RGB, or None where there is none yet) in a grid of so many pixels, each centred in its cell."""
    whole = np.full((height, width, 3), BACKGROUND, np.uint8)
    for at, image in enumerate(images[: shape.rows * shape.columns]):
        if image is None:
            continue
        row, column = divmod(at, shape.columns)
        top, bottom = row * height // shape.rows, (row + 1) * height // shape.rows
        left, right = column * width // shape.columns, (column + 1) * width // shape.columns
        # A line of background between neighbours, where there is room for one and they are not shown as they are.
        is_exact = image.shape[:2] == (bottom - top, right - left)
        gap = 1 if len(images) > 1 and bottom - top > 8 and not is_exact else 0
        wide, high = fit(image.shape[1], image.shape[0], right - left - gap, bottom - top - gap)
        y, x = top + (bottom - top - high) // 2, left + (right - left - wide) // 2
        whole[y : y + high, x : x + wide] = scale(image, high, wide)
    return whole
