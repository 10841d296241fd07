"""Live frames of a run on another machine, in lanes of this one: viewers here cannot tell the difference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from mosaic.base.fastlane import Frame, FrameRequest, LaneWriter, lanes_folder
from mosaic.contracts.folder import RunFolder

RATE_HZ = 15.0
WATCHED_S = 1 / 30
UNWATCHED_S = 0.25
"""How long to wait before the next look at who watches, while somebody does and while nobody does."""
_BUDGET = 0.5
"""Of the time of the thread that writes them: the bridge trains nothing."""

FetchFrames = Callable[[dict[int, FrameRequest]], Awaitable[dict[int, Frame]]]
"""From what is requested of each environment."""


class FrameMirror:
    def __init__(self, folder: RunFolder) -> None:
        self._lanes_folder = lanes_folder(folder.path)
        self._writers: dict[int, LaneWriter] = {}

    def set_lanes(self, lanes: Iterable[int]) -> None:
        """Have a lane for each of these environments and for no other."""
        lanes = tuple(lanes)
        for index in self._writers.keys() - set(lanes):
            self._writers.pop(index).close()
        for index in lanes:
            if index not in self._writers:
                try:
                    self._writers[index] = LaneWriter(
                        self._lanes_folder, index, rate_hz=RATE_HZ, budget=_BUDGET, lane_count=len(lanes)
                    )
                except OSError:
                    return  # no room in shared memory; it is tried again with the next report

    async def copy_frames(self, fetch: FetchFrames) -> float:
        """Copy the frames that are watched and due; return how long to wait before the next call."""
        due = {index: writer.request for index, writer in self._writers.items() if writer.is_due()}
        if due:
            for index, frame in (await fetch(due)).items():
                if (writer := self._writers.get(index)) is not None:
                    writer.copy_frame(frame)
        return WATCHED_S if any(writer.is_watched for writer in self._writers.values()) else UNWATCHED_S

    def close(self) -> None:
        self.set_lanes(())
