"""The handle of whoever produces a run: points, episodes, checkpoints, and what the daemon tells it."""

from mosaic.run.checkpoints import Checkpoint, last_good_checkpoint, load_checkpoint
from mosaic.run.handle import Run

__all__ = ["Checkpoint", "Run", "last_good_checkpoint", "load_checkpoint"]
