"""The producer's side of a run: metrics, episodes, checkpoints, and commands from the daemon."""

from mosaic.run.checkpoints import Checkpoint, last_good_checkpoint, load_checkpoint
from mosaic.run.handle import Run

__all__ = ["Checkpoint", "Run", "last_good_checkpoint", "load_checkpoint"]
