"""The recorded episodes of a run: a list, and a player that simulates them again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QEvent, QItemSelectionModel, QModelIndex, QObject, QSignalBlocker, Qt
from PySide6.QtGui import QHideEvent, QKeyEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QMenu, QTableView, QToolButton, QWidget

from mosaic.api.replays import export_recording
from mosaic.formatting import short_id
from mosaic.gui import theme
from mosaic.gui.models.replay_episodes import ReplayEpisodes
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.replay_screen import ReplayScreen
from mosaic.gui.views.replay_transport import ReplayTransport
from mosaic.gui.views.run_dialogs import write_export
from mosaic.gui.workbench import Workbench

EXPORTS = (
    ("This episode as a video…", ".mp4", "Videos (*.mp4)", True),
    ("This episode as a GIF…", ".gif", "Animated images (*.gif)", True),
    ("This episode as JSONL…", ".jsonl", "One JSON object per step (*.jsonl)", True),
    ("All episodes as JSONL…", ".jsonl", "One JSON object per step (*.jsonl)", False),
)
"""Title, suffix and filter of the file, and whether it is of one episode."""


class ReplayView(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self.setObjectName("replay.view")
        self._workbench = workbench
        self._episodes = ReplayEpisodes(self)
        self.table = ui.plain_table(QTableView(), "replay.episodes")
        self.table.setModel(self._episodes)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.setWordWrap(False)
        self.table.setMinimumWidth(180)
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setResizeContentsPrecision(20)  # a training may have a hundred thousand episodes
        header.setSectionResizeMode(self._episodes.columnCount() - 1, QHeaderView.ResizeMode.Stretch)
        self.table.selectionModel().currentRowChanged.connect(self._choose_row)
        self.table.installEventFilter(self)
        self.player = ReplayScreen(workbench, "replay.screen")
        self.transport = ReplayTransport("replay.transport", lambda: self.player.is_busy)
        self.transport.step_requested.connect(self.player.seek)
        self.player.step_requested.connect(self._go_to)
        self.player.step_shown.connect(self._on_step_shown)
        self.player.episodes_changed.connect(self._show_episodes)
        self.player.failed.connect(lambda _: self.transport.set_steps(0))
        self.export_button = ui.tool_button(
            "replay.export", "mdi6.export-variant", "Export", text="Export", is_flat=False
        )
        self.export_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.export_button.setMenu(self._build_menu())
        self.transport.buttons.addWidget(self.export_button)
        right = ui.widget_column((self.player, 1), self.transport, margins=(theme.GAP, 0, 0, 0))
        self._split = ui.splitter(
            Qt.Orientation.Horizontal, self.table, right, sizes=[320, 640], stretch=1, name="replay.split"
        )
        self._empty = ui.EmptyState(
            "No recording", "Every play session records its episodes, and a training does with “Record episodes”."
        )
        self._stack = ui.stack(self._empty, self._split)
        ui.column(self._stack, parent=self, margins=ui.TAB_MARGINS)

    def _build_menu(self) -> QMenu:
        menu = ui.with_object_name(QMenu(self), "replay.export.menu")
        for title, suffix, file_filter, is_single in EXPORTS:
            menu.addAction(title, partial(self._ask_path, suffix, file_filter, is_single))
        return menu

    def show_run(self, run_id: str | None) -> None:
        """Show the recording of a run; None: nothing."""
        if run_id != self.player.run_id:
            self._episodes.show(())
            self.transport.set_steps(0)
        self._stack.setCurrentIndex(0 if run_id is None else 1)
        self.player.show_run(run_id)

    # --- episodes

    def _show_episodes(self) -> None:
        chosen = self.player.episode
        with QSignalBlocker(self.table.selectionModel()):
            self._episodes.show(self.player.episodes)
        if chosen is not None:
            self._select(self._episodes.row_of(chosen.number), is_quiet=True)
            if chosen.steps != self.transport.steps:  # the episode in progress has grown
                position, is_playing = self.transport.position, self.transport.is_playing
                self.transport.set_steps(chosen.steps, self.player.rate_hz)
                self.transport.show_position(position)
                if is_playing:
                    self.transport.play()
        elif self._episodes.rows:
            self._select(0)

    def _select(self, row: int, is_quiet: bool = False) -> None:
        model = self.table.selectionModel()
        flags = QItemSelectionModel.SelectionFlag.ClearAndSelect | QItemSelectionModel.SelectionFlag.Rows
        index = self._episodes.index(row, 0)
        if is_quiet:
            with QSignalBlocker(model):
                model.setCurrentIndex(index, flags)
            self.table.viewport().update()
        else:
            model.setCurrentIndex(index, flags)

    def _choose_row(self, current: QModelIndex, _: QModelIndex) -> None:
        if not current.isValid():
            return
        episode = self._episodes.rows[current.row()]
        self.transport.set_steps(episode.steps, self.player.rate_hz)
        self.player.choose_episode(episode.number)

    # --- steps

    def _go_to(self, step: int) -> None:
        self.transport.show_position(step)
        self.player.seek(step)

    def _on_step_shown(self, step: int) -> None:
        if not self.transport.is_playing and not self.player.is_busy:
            self.transport.show_position(step)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self.transport.handle_key(event):
            super().keyPressEvent(event)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """In the list of episodes, Up and Down choose one; the other keys are those of the player."""
        if watched is self.table and isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            return self.transport.handle_key(event)
        return False

    def hideEvent(self, event: QHideEvent) -> None:
        self.transport.pause()
        super().hideEvent(event)

    # --- export

    def _ask_path(self, suffix: str, file_filter: str, is_single: bool) -> None:
        run_id, episode = self.player.run_id, self.player.episode
        if run_id is None or episode is None:
            return
        number = episode.number if is_single else None
        folder = Path(self._workbench.settings.get("export.folder", str(Path.home())))
        name = f"{short_id(run_id)}-episode-{number}" if is_single else f"{short_id(run_id)}-episodes"
        ui.open_save_dialog(
            self._workbench.window,
            "export.file",
            "Export the replay",
            folder / f"{name}{suffix}",
            file_filter,
            partial(self.export, number),
        )

    def export(self, number: int | None, path: Path) -> None:
        """Write one episode, or all of them, to a file whose suffix says how."""
        view = self._workbench.runs.get_or_placeholder(self.player.run_id or "")
        write_export(self._workbench, partial(export_recording, number=number), view, path)
