"""The newest frames of running environments, in shared memory. Standard library and numpy, Python 3.8 and up.

One lane is one environment. Its writer renders only while somebody watches; its readers map it read-only and never
hold it up. This package imports nothing of ours, so that the probe can carry a copy of it into other people's scripts.
"""

from .grid import Shape, as_rgb, compose, fit, grid_shape, scaled, smoothly_scaled
from .layout import BGRX32, RGB24, Frame
from .place import lane_indices, lanes_folder, reap, reap_all
from .reader import LaneReader
from .tap import FrameTap
from .view import LaneView, hud
from .writer import LaneWriter

__all__ = [
    "BGRX32", "RGB24", "Frame", "FrameTap", "LaneReader", "LaneView", "LaneWriter", "Shape", "as_rgb", "compose", "fit",
    "grid_shape", "hud", "lane_indices", "lanes_folder", "reap", "reap_all", "scaled", "smoothly_scaled",
]  # fmt: skip
