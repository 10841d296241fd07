"""Two videos side by side, of any of the compared runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QPushButton, QSizePolicy, QStackedWidget, QVBoxLayout, QWidget

from mosaic.formatting import format_si_number, run_title
from mosaic.gui import theme
from mosaic.gui.models.video_file import VideoFile, list_videos
from mosaic.gui.views.empty_state import EmptyState
from mosaic.gui.views.video_player import VideoPlayer
from mosaic.gui.views.widgets import with_object_name
from mosaic.gui.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.contracts.views import RunView

VideoChoice = tuple[str, VideoFile]


class VideoPair(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._views: Sequence[RunView] = ()
        self._choices: list[VideoChoice] = []
        self._needs_reload = False
        self._players = [VideoPlayer(workbench.bridge, f"compare.film.{side}") for side in ("left", "right")]
        self._menus = [with_object_name(QComboBox(), f"compare.video.{side}") for side in ("left", "right")]
        self._empty = EmptyState("No videos", "None of these runs has recorded one: “Capture video” makes a run do so.")
        # Hidden behind another tab it shall not make the page taller.
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Ignored)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._build_players())
        column = QVBoxLayout(self)
        column.setContentsMargins(0, theme.GAP, 0, 0)
        column.addWidget(self._stack)
        for film in self._players:
            workbench.theme_changed.connect(film.paint_icons)

    def _build_players(self) -> QWidget:
        both = with_object_name(QPushButton("Play both"), "compare.play")
        both.setToolTip("From the beginning")
        both.clicked.connect(lambda _: self._play_both())
        inside = QWidget()
        row = QHBoxLayout(inside)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(2 * theme.GAP)
        for side, (menu, film) in enumerate(zip(self._menus, self._players, strict=True)):
            menu.currentIndexChanged.connect(lambda _, side=side: self._choose(side))
            menu.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
            head = QHBoxLayout()
            head.setSpacing(theme.GAP)
            head.addWidget(menu, 1)
            if side:
                head.addWidget(both)
            column = QVBoxLayout()
            column.setSpacing(theme.GAP)
            column.addLayout(head)
            column.addWidget(film, 1)
            row.addLayout(column, 1)
        return inside

    def show_runs(self, views: Sequence[RunView]) -> None:
        self._views = views
        self._needs_reload = True
        if self.isVisible():
            self._load_videos()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._needs_reload:
            self._load_videos()

    def _load_videos(self) -> None:
        self._needs_reload = False
        views = [view for view in self._views if view.run_dir]

        def list_choices(trainer: TrainerClient) -> list[VideoChoice]:
            return [(_title(view, video), video) for view in views for video in list_videos(trainer, view)]

        self._workbench.bridge.ask(list_choices, self._show_choices, self._workbench.show_error, self)

    def _show_choices(self, choices: list[VideoChoice]) -> None:
        if choices == self._choices:
            return
        self._choices = choices
        self._stack.setCurrentIndex(1 if choices else 0)
        for side, menu in enumerate(self._menus):
            menu.blockSignals(True)
            menu.clear()
            menu.addItems([title for title, _ in choices])
            menu.setCurrentIndex(min(side * self._default_right_index(), len(choices) - 1))
            menu.blockSignals(False)
            self._choose(side, is_playing=False)

    def _default_right_index(self) -> int:
        """The first video of another run, else the next of the same."""
        folders = [video.path.parent for _, video in self._choices]
        return next((number for number, folder in enumerate(folders) if folder != folders[0]), 1)

    def _choose(self, side: int, is_playing: bool = True) -> None:
        number = self._menus[side].currentIndex()
        video = self._choices[number][1] if 0 <= number < len(self._choices) else None
        self._players[side].show_video(video, is_playing)

    def _play_both(self) -> None:
        for side in (0, 1):
            self._choose(side)


def _title(view: RunView, video: VideoFile) -> str:
    parts = [run_title(view), video.path.stem]
    if video.episode_return is not None:
        parts.append(f"return {format_si_number(video.episode_return)}")
    return " · ".join(parts)
