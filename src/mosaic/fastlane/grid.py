"""Several pictures as one. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .layout import BGRX32

DEFAULT_ASPECT_RATIO = 16 / 9
"""The shape of a view that is not known: width by height."""
_EMPTY_CELL_PENALTY = 6.0
"""How much worse a grid of only holes would be than one that fits: 8 are 2 rows of 4, not 3 of 3."""


MAX_SAMPLES_PER_AXIS = 3
BACKGROUND_GRAY = 24


class GridShape(NamedTuple):
    rows: int
    columns: int


def grid_shape(
    count: int, view_aspect_ratio: float = DEFAULT_ASPECT_RATIO, cell_aspect_ratio: float = 1.5
) -> GridShape:
    """The grid for so many cells that comes nearest to the view's shape; both shapes are width by height."""
    if count <= 1:
        return GridShape(1, 1)

    def misfit(shape: GridShape) -> float:
        holes = shape.rows * shape.columns - count
        return (
            abs(math.log(shape.columns * cell_aspect_ratio / (shape.rows * view_aspect_ratio)))
            + _EMPTY_CELL_PENALTY * holes / count
        )

    shapes = [GridShape(-(-count // columns), columns) for columns in range(count, 0, -1)]
    return min(shapes, key=misfit)


def as_rgb(image: Any, pixel_format: str) -> Any:
    """A view of the same pixels, red first, without the fourth channel."""
    return image[:, :, 2::-1] if pixel_format == BGRX32 else image[:, :, :3]


def scale_image(image: Any, height: int, width: int) -> Any:
    """In another size: each new pixel is the mean of up to nine of those that it covers."""
    if image.shape[:2] == (height, width):
        return image
    down = min(MAX_SAMPLES_PER_AXIS, -(-image.shape[0] // height))
    across = min(MAX_SAMPLES_PER_AXIS, -(-image.shape[1] // width))
    rows = _sample_centers(height * down, image.shape[0])
    columns = _sample_centers(width * across, image.shape[1])
    found = image[rows[:, None], columns]
    if down == across == 1:
        return found
    means = found.reshape(height, down, width, across, 3).mean(axis=(1, 3), dtype=np.float32)
    return means.astype(np.uint8)


def scale_image_smoothly(image: Any, height: int, width: int) -> Any:
    """The same for large pictures, by Pillow where it is installed."""
    if image.shape[:2] == (height, width):
        return image
    try:
        from PIL import Image
    except ImportError:
        return scale_image(image, height, width)
    made = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(made.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0))


def _sample_centers(count: int, size: int) -> Any:
    return (2 * np.arange(count) + 1) * size // (2 * count)


def fit_size(width: int, height: int, max_width: int, max_height: int) -> tuple[int, int]:
    """The largest width and height of the same shape that the room holds."""
    scale = min(max_width / width, max_height / height)
    return max(1, int(width * scale)), max(1, int(height * scale))


def compose_grid(
    images: Sequence[Any],
    shape: GridShape,
    width: int,
    height: int,
    scale: Callable[[Any, int, int], Any] = scale_image,
) -> Any:
    """The images (RGB, or None where there is none yet) in a grid of so many pixels, each centred in its cell."""
    whole = np.full((height, width, 3), BACKGROUND_GRAY, np.uint8)
    for at, image in enumerate(images[: shape.rows * shape.columns]):
        if image is None:
            continue
        row, column = divmod(at, shape.columns)
        top, bottom = row * height // shape.rows, (row + 1) * height // shape.rows
        left, right = column * width // shape.columns, (column + 1) * width // shape.columns
        # A line of background between neighbours, where there is room for one and they are not shown as they are.
        is_exact = image.shape[:2] == (bottom - top, right - left)
        gap = 1 if len(images) > 1 and bottom - top > 8 and not is_exact else 0
        wide, high = fit_size(image.shape[1], image.shape[0], right - left - gap, bottom - top - gap)
        y, x = top + (bottom - top - high) // 2, left + (right - left - wide) // 2
        whole[y : y + high, x : x + wide] = scale(image, high, wide)
    return whole
