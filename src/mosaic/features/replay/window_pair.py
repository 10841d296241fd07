"""Two replays side by side, of any of the compared runs, stepped together."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QObject
from PySide6.QtGui import QHideEvent, QKeyEvent
from PySide6.QtWidgets import QComboBox, QSizePolicy, QWidget

from mosaic.base.formatting import run_title
from mosaic.contracts.views import RunView
from mosaic.features.replay.window import ReplayScreen
from mosaic.features.replay.window_player import ReplayTransport, describe_episode
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.workbench import Workbench

MAX_LISTED = 2000
"""Episodes of a run in a list; a training may have a hundred thousand."""


class ReplaySide(QObject):
    """The run, the episode and the screen of one side."""

    def __init__(self, workbench: Workbench, name: str, parent: ReplayPair) -> None:
        super().__init__(parent)
        self._pair = parent
        self.screen = ReplayScreen(workbench, f"{name}.screen")
        self.run = ui.combo_box(f"{name}.run", tip="Run")
        self.episode = ui.combo_box(f"{name}.episode", tip="Recorded episode")
        for box in (self.run, self.episode):
            box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.run.currentIndexChanged.connect(lambda _: self._show_run())
        self.episode.currentIndexChanged.connect(lambda _: self._show_episode())
        self.screen.episodes_changed.connect(self._list_episodes)
        self.layout = ui.column(ui.row((self.run, 1), (self.episode, 1)), (self.screen, 1))

    def list_runs(self, views: Sequence[RunView], default: int) -> None:
        """Offer these runs; a run that was chosen stays."""
        chosen = self.run.currentData()
        ids = [view.run_id for view in views]
        selected = chosen if chosen in ids else ids[min(default, len(ids) - 1)] if ids else None
        ui.set_choices(self.run, [(run_title(view), view.run_id) for view in views], selected)
        show_whole_texts(self.run)
        self._show_run()

    def _show_run(self) -> None:
        run_id = self.run.currentData()
        if run_id != self.screen.run_id:
            ui.set_choices(self.episode, [], None)
        self.screen.show_run(run_id)

    def _list_episodes(self) -> None:
        episodes = self.screen.episodes[:MAX_LISTED]
        number = self.screen.episode.number if self.screen.episode is not None else None
        ui.set_choices(self.episode, [(describe_episode(row), row.number) for row in episodes], number)
        show_whole_texts(self.episode)
        count = len(self.screen.episodes)
        is_cut = count > MAX_LISTED
        self.episode.setToolTip(f"The first {MAX_LISTED:,} of {count:,} episodes" if is_cut else "Recorded episode")
        if number is None and episodes:
            self.episode.setCurrentIndex(0)
        else:
            self._pair.update_length()

    def _show_episode(self) -> None:
        number = self.episode.currentData()
        if number is not None:
            self.screen.choose_episode(number)
            self._pair.restart()


def show_whole_texts(box: QComboBox) -> None:
    """Make the opened list as wide as its texts, however narrow the box is."""
    box.view().setMinimumWidth(box.view().sizeHintForColumn(0) + 2 * theme.MARGIN)


class ReplayPair(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self.sides = [ReplaySide(workbench, f"compare.replay.{side}", self) for side in ("left", "right")]
        self.transport = ReplayTransport("compare.replay.transport", lambda: any(s.screen.is_busy for s in self.sides))
        self.transport.step_requested.connect(self._seek)
        for side in self.sides:
            side.screen.step_requested.connect(self._go_to)
            side.screen.failed.connect(lambda _: self.update_length())
        # In a hidden tab it does not make the page taller.
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Ignored)
        self._empty = ui.EmptyState(
            "No replays", "None of these runs has recorded episodes: “Record episodes” makes a training do so."
        )
        screens = ui.row(*((side.layout, 1) for side in self.sides), spacing=2 * theme.GAP)
        self._stack = ui.stack(self._empty, ui.widget_column((screens, 1), self.transport))
        ui.column(self._stack, parent=self, margins=(0, theme.GAP, 0, 0))

    def show_runs(self, views: Sequence[RunView]) -> None:
        recorded = [view for view in views if view.has_recording]
        self._stack.setCurrentIndex(1 if recorded else 0)
        for default, side in enumerate(self.sides):
            side.list_runs(recorded, default)

    def update_length(self) -> None:
        """Play as long as the longer episode; the other one stays at its end."""
        steps = max((side.screen.episode.steps for side in self.sides if side.screen.episode is not None), default=0)
        if steps != self.transport.steps:
            position = self.transport.position
            self.transport.set_steps(steps, max(side.screen.rate_hz for side in self.sides))
            self.transport.show_position(position)

    def restart(self) -> None:
        """Another episode was chosen: both start again."""
        self.transport.pause()
        self.update_length()
        self._go_to(0)

    def _go_to(self, step: int) -> None:
        self.transport.show_position(step)
        self._seek(step)

    def _seek(self, step: int) -> None:
        for side in self.sides:
            side.screen.seek(step)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self.transport.handle_key(event):
            super().keyPressEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self.transport.pause()
        super().hideEvent(event)
