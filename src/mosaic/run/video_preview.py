"""Logs a preview of a video to TensorBoard's image tab."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mosaic.media.gif import encode_gif

if TYPE_CHECKING:
    from mosaic.run.handle import Run

VIDEO_TAG = "videos/episode"


def log_video_preview(run: Run, video_path: Path) -> None:
    """Log the first seconds of `rl-video-episode-<n>.mp4` as a GIF; a failure is ignored."""
    try:
        gif = encode_gif(video_path)
        episode = int(video_path.stem.rpartition("-")[2])
    except Exception:
        # Decoders raise all kinds of errors, and the video itself exists.
        return
    if gif is not None:
        run.image(VIDEO_TAG, gif.encoded, gif.width, gif.height, episode)
