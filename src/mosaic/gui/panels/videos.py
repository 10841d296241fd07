"""The videos that a run has recorded, to be played here."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, QTimer
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QListWidget,
    QListWidgetItem,
    QPushButton,
    QSplitter,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme
from mosaic.gui.models.film import VideoFile, videos_of
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.film_view import FilmView
from mosaic.gui.views.made import named
from mosaic.gui.views.words import ago, moment, number
from mosaic.gui.workbench import Workbench

LOOK_MS = 5000
NONE = "No videos"
NONE_TEXT = "A run records some when “Capture video” is on; an evaluation of its policy, when “Video” is."


class VideosTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._videos: list[VideoFile] = []
        self._list = named(QListWidget(), "videos.list")
        self._list.setWordWrap(True)
        self._list.setProperty("roomy", True)
        self._film = FilmView(workbench.bridge, "videos.film")
        self._record = named(QPushButton("Evaluate its policy"), "videos.evaluate")
        self._record.clicked.connect(lambda: workbench.page_wanted.emit("policy"))
        self._empty = Empty(NONE, NONE_TEXT, self._record)
        split = named(QSplitter(Qt.Orientation.Horizontal), "videos.split")
        split.addWidget(self._list)
        split.addWidget(self._film)
        split.setStretchFactor(1, 1)
        split.setSizes([260, 640])
        split.setChildrenCollapsible(False)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._stack.addWidget(split)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, theme.GAP)
        column.addWidget(self._stack)
        self._clock = QTimer(self, interval=LOOK_MS)
        self._clock.timeout.connect(self._look)
        self._list.currentRowChanged.connect(self._choose)
        workbench.theme_changed.connect(self._film.paint_icons)

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._videos = []
            self._list.clear()
            self._film.show_video(None)
            self._record.hide()
            self._empty.say("Looking for videos…")
            self._stack.setCurrentIndex(0)
        self._look()

    def _look(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is None:
            return
        if self._workbench.is_remote:
            self._empty.say("The videos are on the trainer's machine", view["run_dir"])
            return
        if view["stage"] == "finished":
            self._clock.stop()
        run_id = self._run_id

        def then(videos: list[VideoFile]) -> None:
            if run_id == self._run_id:
                self._show(videos)

        self._workbench.bridge.work(lambda: videos_of(view["run_dir"]), then, self._workbench.tell_error, self)

    def _show(self, videos: list[VideoFile]) -> None:
        if not videos:
            view = self._workbench.runs.get(self._run_id) or {}
            self._record.setVisible(view.get("checkpoint_step") is not None)
            self._empty.say(NONE, NONE_TEXT)
        if videos == self._videos:
            return
        is_first = not self._videos
        chosen = self._list.currentRow()
        kept = self._videos[chosen].path if 0 <= chosen < len(self._videos) else None
        self._videos = videos
        self._list.blockSignals(True)
        self._list.clear()
        for video in videos:
            item = QListWidgetItem(_title(video))
            item.setToolTip(f"{video.path}\n{moment(video.written_at)}")
            item.setSizeHint(QSize(0, 2 * self.fontMetrics().height() + 16))
            self._list.addItem(item)
        paths = [video.path for video in videos]
        if kept in paths:
            self._list.setCurrentRow(paths.index(kept))
        self._list.blockSignals(False)
        self._stack.setCurrentIndex(1 if videos else 0)
        if is_first and videos:
            self._list.setCurrentRow(0)

    def _choose(self, row: int) -> None:
        if 0 <= row < len(self._videos):
            self._film.show_video(self._videos[row])

    def showEvent(self, event: QShowEvent) -> None:
        self._clock.start()
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self._clock.stop()
        super().hideEvent(event)


def _title(video: VideoFile) -> str:
    facts = []
    if video.episode_return is not None:
        facts.append(f"return {number(video.episode_return)}")
    if video.episode_length is not None:
        facts.append(f"{video.episode_length:,} steps")
    facts.append(ago(video.written_at))
    return f"{video.path.stem}\n{' · '.join(facts)}"
