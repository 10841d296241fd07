"""The newest frames of running environments, in shared memory. Standard library and numpy, Python 3.8 and up.

One lane is one environment. Its writer renders only while a reader watches; its readers map it read-only and never
block it. Of MOSAIC this package imports the names of events only, so that the probe can ship a copy into user scripts.
"""

from .grid import (
    GridShape,
    as_rgb,
    compose_grid,
    fit_size,
    full_grid,
    grid_shape,
    limit_size,
    scale_image,
    scale_image_smoothly,
)
from .lane_files import lane_indices, lanes_folder, reap, reap_all
from .layout import BGRX32, RGB24, Frame, FrameHud, describe_cost
from .reader import CONNECTED, UNAVAILABLE, WAITING, LaneReader, LaneView
from .requests import NO_REQUEST, FrameRequest
from .tap import FrameTap
from .writer import LaneWriter

__all__ = [
    "BGRX32",
    "CONNECTED",
    "NO_REQUEST",
    "RGB24",
    "UNAVAILABLE",
    "WAITING",
    "Frame",
    "FrameHud",
    "FrameRequest",
    "FrameTap",
    "GridShape",
    "LaneReader",
    "LaneView",
    "LaneWriter",
    "as_rgb",
    "compose_grid",
    "describe_cost",
    "fit_size",
    "full_grid",
    "grid_shape",
    "lane_indices",
    "lanes_folder",
    "limit_size",
    "reap",
    "reap_all",
    "scale_image",
    "scale_image_smoothly",
]  # fmt: skip
