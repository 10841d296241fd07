"""The Videos tab: the videos that a run has recorded, and a player."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, QSize, Qt
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QWidget

from mosaic.formatting import format_ago, format_si_number, format_timestamp
from mosaic.gui.models.video_file import VideoFile, list_videos
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.video_player import VideoPlayer
from mosaic.gui.workbench import Workbench

POLL_INTERVAL_MS = 5000
NO_VIDEOS_TITLE = "No videos"
NO_VIDEOS_TEXT = "A run records some when “Capture video” is on; an evaluation of its policy, when “Video” is."


class VideosTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._videos: list[VideoFile] = []
        self._list = ui.with_object_name(QListWidget(), "videos.list")
        self._list.setWordWrap(True)
        self._list.setProperty("roomy", True)
        self._player = VideoPlayer(workbench.bridge, "videos.player")
        self._evaluate_button = ui.button(
            "Evaluate its policy", "videos.evaluate", lambda: workbench.page_requested.emit("policy")
        )
        self._empty = ui.EmptyState(NO_VIDEOS_TITLE, NO_VIDEOS_TEXT, self._evaluate_button)
        split = ui.splitter(
            Qt.Orientation.Horizontal, self._list, self._player, sizes=[260, 640], stretch=1, name="videos.split"
        )
        self._stack = ui.stack(self._empty, split)
        ui.column(self._stack, parent=self, margins=ui.TAB_MARGINS)
        self._poll_timer = ui.VisibleTimer(self, POLL_INTERVAL_MS, self._poll)
        self._list.currentRowChanged.connect(self._play_row)

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._videos = []
            self._list.clear()
            self._player.show_video(None)
            self._evaluate_button.hide()
            self._empty.set_text("Looking for videos…")
            self._stack.setCurrentIndex(0)
        self._poll()

    def _poll(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is None:
            return
        if view.stage == "finished":
            self._poll_timer.stop()
        run_id = self._run_id

        def then(videos: list[VideoFile]) -> None:
            if run_id == self._run_id:
                self._show(videos)

        self._workbench.bridge.ask(lambda trainer: list_videos(trainer, view), then, self._workbench.show_error, self)

    def _show(self, videos: list[VideoFile]) -> None:
        if not videos:
            view = self._workbench.runs.get_or_placeholder(self._run_id)
            self._evaluate_button.setVisible(view.checkpoint_step is not None)
            self._empty.set_text(NO_VIDEOS_TITLE, NO_VIDEOS_TEXT)
        if videos == self._videos:
            return
        is_first = not self._videos
        selected = self._list.currentRow()
        selected_path = self._videos[selected].path if 0 <= selected < len(self._videos) else None
        self._videos = videos
        with QSignalBlocker(self._list):
            self._list.clear()
            for video in videos:
                item = QListWidgetItem(_video_title(video))
                item.setToolTip(f"{video.path}\n{format_timestamp(video.written_at)}")
                item.setSizeHint(QSize(0, 2 * self.fontMetrics().height() + 16))
                self._list.addItem(item)
            paths = [video.path for video in videos]
            if selected_path in paths:
                self._list.setCurrentRow(paths.index(selected_path))
        self._stack.setCurrentIndex(1 if videos else 0)
        if is_first and videos:
            self._list.setCurrentRow(0)

    def _play_row(self, row: int) -> None:
        if 0 <= row < len(self._videos):
            self._player.show_video(self._videos[row])


def _video_title(video: VideoFile) -> str:
    details = []
    if video.episode_return is not None:
        details.append(f"return {format_si_number(video.episode_return)}")
    if video.episode_length is not None:
        details.append(f"{video.episode_length:,} steps")
    details.append(format_ago(video.written_at))
    return f"{video.path.stem}\n{' · '.join(details)}"
