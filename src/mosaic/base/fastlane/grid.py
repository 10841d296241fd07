"""Scales images and composes several into one grid. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .layout import BGRX32

DEFAULT_ASPECT_RATIO = 16 / 9
"""Width by height of a view whose shape is unknown."""
_EMPTY_CELL_PENALTY = 6.0
"""Weight of empty cells: 8 images become 2 rows of 4, not 3 rows of 3."""


MAX_SAMPLES_PER_AXIS = 3
BACKGROUND_GRAY = 24


class GridShape(NamedTuple):
    rows: int
    columns: int


def grid_shape(
    count: int, view_aspect_ratio: float = DEFAULT_ASPECT_RATIO, cell_aspect_ratio: float = 1.5
) -> GridShape:
    """Return the grid for `count` cells that fits the view best; aspect ratios are width by height."""
    if count <= 1:
        return GridShape(1, 1)

    def misfit(shape: GridShape) -> float:
        empty_cells = shape.rows * shape.columns - count
        return (
            abs(math.log(shape.columns * cell_aspect_ratio / (shape.rows * view_aspect_ratio)))
            + _EMPTY_CELL_PENALTY * empty_cells / count
        )

    shapes = [GridShape(-(-count // columns), columns) for columns in range(count, 0, -1)]
    return min(shapes, key=misfit)


def as_rgb(image: Any, pixel_format: str) -> Any:
    """Return a view of the same pixels as RGB, without the fourth channel."""
    return image[:, :, 2::-1] if pixel_format == BGRX32 else image[:, :, :3]


def scale_image(image: Any, height: int, width: int) -> Any:
    """Resize an image: each new pixel is the mean of up to nine pixels that it covers."""
    if image.shape[:2] == (height, width):
        return image
    down = min(MAX_SAMPLES_PER_AXIS, -(-image.shape[0] // height))
    across = min(MAX_SAMPLES_PER_AXIS, -(-image.shape[1] // width))
    rows = _sample_centers(height * down, image.shape[0])
    columns = _sample_centers(width * across, image.shape[1])
    samples = image[rows[:, None], columns]
    if down == across == 1:
        return samples
    means = samples.reshape(height, down, width, across, 3).mean(axis=(1, 3), dtype=np.float32)
    return means.astype(np.uint8)


def scale_image_smoothly(image: Any, height: int, width: int) -> Any:
    """Resize a large image with Pillow where it is installed, otherwise with `scale_image`."""
    if image.shape[:2] == (height, width):
        return image
    try:
        from PIL import Image
    except ImportError:
        return scale_image(image, height, width)
    source = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(source.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0))


def _sample_centers(count: int, size: int) -> Any:
    return (2 * np.arange(count) + 1) * size // (2 * count)


def fit_size(width: int, height: int, max_width: int, max_height: int) -> tuple[int, int]:
    """Return the largest width and height with the same aspect ratio within the maximum."""
    scale = min(max_width / width, max_height / height)
    return max(1, int(width * scale)), max(1, int(height * scale))


def limit_size(width: int, height: int, max_side: int) -> tuple[int, int]:
    """Return the same size, or a smaller one with the same aspect ratio if a side is longer than the maximum."""
    return fit_size(width, height, max_side, max_side) if max(width, height) > max_side else (width, height)


def full_grid(
    images: Sequence[Any], view_aspect_ratio: float = DEFAULT_ASPECT_RATIO
) -> tuple[GridShape, tuple[int, int]]:
    """Return the grid for these images, of which one must not be None, and its width and height at full size."""
    height, width = next(image for image in images if image is not None).shape[:2]
    shape = grid_shape(len(images), view_aspect_ratio, width / height)
    return shape, (width * shape.columns, height * shape.rows)


def compose_grid(
    images: Sequence[Any],
    shape: GridShape,
    width: int,
    height: int,
    scale: Callable[[Any, int, int], Any] = scale_image,
) -> Any:
    """Draw the images (RGB, or None for an empty cell) into a grid of `width` by `height` pixels, each centered."""
    canvas = np.full((height, width, 3), BACKGROUND_GRAY, np.uint8)
    for index, image in enumerate(images[: shape.rows * shape.columns]):
        if image is None:
            continue
        row, column = divmod(index, shape.columns)
        top, bottom = row * height // shape.rows, (row + 1) * height // shape.rows
        left, right = column * width // shape.columns, (column + 1) * width // shape.columns
        # A line of background between neighbors, unless the cell is tiny or the image fills it exactly.
        is_exact = image.shape[:2] == (bottom - top, right - left)
        gap = 1 if len(images) > 1 and bottom - top > 8 and not is_exact else 0
        scaled_width, scaled_height = fit_size(image.shape[1], image.shape[0], right - left - gap, bottom - top - gap)
        y, x = top + (bottom - top - scaled_height) // 2, left + (right - left - scaled_width) // 2
        canvas[y : y + scaled_height, x : x + scaled_width] = scale(image, scaled_height, scaled_width)
    return canvas
