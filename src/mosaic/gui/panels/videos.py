"""The Videos tab: the videos that a run has recorded, and a player."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from PySide6.QtCore import QSignalBlocker, QSize, Qt
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QWidget

from mosaic.client.trainer_client import TrainerClient
from mosaic.formatting import count_noun, format_ago, format_si_number, format_timestamp
from mosaic.gui.models.recording import Recording
from mosaic.gui.models.run_states import empty_text
from mosaic.gui.models.video_file import VideoFile, list_videos
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.video_player import VideoPlayer
from mosaic.gui.workbench import Workbench

POLL_INTERVAL_MS = 5000
PROGRESS_INTERVAL_MS = 500


class VideoRow(NamedTuple):
    """A line of the list."""

    path: PurePath
    title: str
    tooltip: str
    video: VideoFile | None
    """None while it is being written."""


class VideosTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._videos: list[VideoFile] = []
        self._rows: list[VideoRow] = []
        self._list = ui.with_object_name(QListWidget(), "videos.list")
        self._list.setWordWrap(True)
        self._list.setProperty("roomy", True)
        self._player = VideoPlayer(workbench.bridge, "videos.player")
        self._evaluate_button = ui.button(
            "Evaluate its policy", "videos.evaluate", lambda: workbench.page_requested.emit("policy")
        )
        self._empty = ui.EmptyState("", "", self._evaluate_button)
        split = ui.splitter(
            Qt.Orientation.Horizontal, self._list, self._player, sizes=[260, 640], stretch=1, name="videos.split"
        )
        self._stack = ui.stack(self._empty, split)
        ui.column(self._stack, parent=self, margins=ui.TAB_MARGINS)
        self._poll_timer = ui.VisibleTimer(self, POLL_INTERVAL_MS, self._poll)
        ui.VisibleTimer(self, PROGRESS_INTERVAL_MS, self._show_progress)
        self._list.currentRowChanged.connect(self._play_row)
        workbench.recordings.changed.connect(self._on_recordings_changed)

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._videos = []
            self._rows = []
            self._list.clear()
            self._player.show_video(None)
            self._evaluate_button.hide()
            self._empty.set_text("Looking for videos…")
            self._stack.setCurrentIndex(0)
        self._show_progress()
        self._poll()

    def _on_recordings_changed(self, run_id: str) -> None:
        if run_id == self._run_id:
            self._show_progress()
            self._poll()

    def _show_progress(self) -> None:
        """Show recordings that are taken or being written, before the trainer has answered."""
        if self._workbench.recordings.of_run(self._run_id):
            self._show(self._videos)

    def _poll(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is None:
            return
        if view.stage == "finished":
            self._poll_timer.stop()
        run_id = self._run_id
        exports = self._workbench.workspace.exports(run_id)

        def call(trainer: TrainerClient) -> list[VideoFile]:
            return list_videos(trainer, view, exports)

        def then(videos: list[VideoFile]) -> None:
            if run_id == self._run_id:
                self._show(videos)

        self._workbench.bridge.ask(call, then, self._workbench.show_error, self)

    def _show(self, videos: list[VideoFile]) -> None:
        self._videos = videos
        recordings = self._workbench.recordings.of_run(self._run_id)
        known = {video.path for video in videos}
        rows = [_recording_row(recording) for recording in recordings if recording.path not in known]
        rows += [
            VideoRow(video.path, _video_title(video), f"{video.path}\n{format_timestamp(video.written_at)}", video)
            for video in videos
        ]
        if not rows:
            view = self._workbench.runs.get_or_placeholder(self._run_id)
            self._evaluate_button.setVisible(view.checkpoint_step is not None)
            self._empty.set_text(*empty_text("videos", view))
        before, self._rows = self._rows, rows
        selected = self._list.currentRow()
        shown = before[selected] if 0 <= selected < len(before) else None
        if [(row.path, row.tooltip) for row in rows] != [(row.path, row.tooltip) for row in before]:
            with QSignalBlocker(self._list):
                self._list.clear()
                for row in rows:
                    item = QListWidgetItem(row.title)
                    item.setToolTip(row.tooltip)
                    item.setSizeHint(QSize(0, 2 * self.fontMetrics().height() + 16))
                    self._list.addItem(item)
        for at, row in enumerate(rows):
            self._list.item(at).setText(row.title)
        self._stack.setCurrentIndex(1 if rows else 0)
        self._select(rows, shown)

    def _select(self, rows: list[VideoRow], shown: VideoRow | None) -> None:
        """Keep what is selected, unless another video is requested; play it once it is complete."""
        paths = [row.path for row in rows]
        requested = self._workbench.recordings.requested_path
        if requested in paths:
            self._workbench.recordings.requested_path = None
        path = requested if requested in paths else shown.path if shown is not None else None
        at = paths.index(path) if path in paths else 0 if rows else -1
        with QSignalBlocker(self._list):
            self._list.setCurrentRow(at)
        chosen = rows[at] if rows else None
        if _player_key(chosen) != _player_key(shown):
            self._play_row(at)

    def _play_row(self, row: int) -> None:
        if 0 <= row < len(self._rows):
            self._player.show_video(self._rows[row].video)


def _player_key(row: VideoRow | None) -> tuple[PurePath, bool] | None:
    return None if row is None else (row.path, row.video is not None)


def _recording_row(recording: Recording) -> VideoRow:
    state = f"being written, {100 * recording.progress:.0f} %" if recording.is_stopped else "being recorded"
    return VideoRow(recording.path, f"{recording.path.stem}\n{state}", str(recording.path), None)


def _video_title(video: VideoFile) -> str:
    details = ["recorded in the window"] if video.local_path is not None else []
    if video.episode_return is not None:
        details.append(f"return {format_si_number(video.episode_return)}")
    if video.episode_length is not None:
        details.append(count_noun(video.episode_length, "step"))
    details.append(format_ago(video.written_at))
    return f"{video.path.stem}\n{' · '.join(details)}"
