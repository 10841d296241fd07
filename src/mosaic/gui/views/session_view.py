"""One play session on the screen: its tabs, the buttons of its actions, and the score."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QWidget

from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.play_commands import Act
from mosaic.contracts.views import SeatState, SessionState
from mosaic.formatting import format_si_number
from mosaic.gui import theme
from mosaic.gui.models.play_sessions import PlaySession
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.action_buttons import ActionButtons
from mosaic.gui.views.frames_view import FramesView
from mosaic.gui.views.key_capture import KeyCapture
from mosaic.gui.views.replay_view import ReplayView
from mosaic.gui.views.symbol_grid import SymbolGridView
from mosaic.gui.views.text_views import MonospaceView
from mosaic.gui.workbench import Workbench

GRID, RAW, VIDEO, REPLAY = "Grid", "Raw", "Video", "Replay"
NO_GRID = "This environment has no symbols to show as a grid. The Video tab shows its frames, the Raw tab its numbers."
SEPARATOR = "   "
_COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")


class SessionView(QWidget):
    input_given = Signal(object)
    """A command of the human: keys, or an action."""
    escaped = Signal()
    """Escape was pressed."""

    def __init__(self, workbench: Workbench, session: PlaySession, name: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._session = session
        self.is_stepped = False
        """Whether it is one of two that are stepped together: then it is always paused."""
        self.other_keys: Sequence[KeyBinding] = ()
        """Those of the session next to it, so that both have the same buttons."""
        self._shown_run: str | None = None
        """The run whose tab was chosen."""
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.grid = ui.with_object_name(SymbolGridView(), f"{name}.grid")
        self.raw = ui.with_object_name(MonospaceView(), f"{name}.raw")
        self.frames = ui.with_object_name(FramesView(workbench, is_session=True), f"{name}.frames")
        self.replay = ui.with_object_name(ReplayView(workbench), f"{name}.replay")
        self.tabs = ui.tabs(
            f"{name}.tabs",
            (GRID, self.grid),
            (RAW, self.raw),
            (VIDEO, self.frames),
            (REPLAY, ui.scroll_area(self.replay)),
        )
        self.tabs.currentChanged.connect(lambda _: self._on_tab_changed())
        self.title = ui.ElidedLabel()
        ui.set_properties(self.title, section=True)
        self.title.hide()
        self._problem = ui.selectable_label(f"{name}.problem")
        ui.set_properties(self._problem, error=True)
        self._log = ui.selectable_label(f"{name}.log")
        ui.set_properties(self._log, monospace=True)
        self._open_log = ui.button("Show the log", f"{name}.open_log", self._show_log)
        self._retry = ui.button("Retry", f"{name}.retry", session.retry)
        self._score = ui.with_object_name(ui.ElidedLabel(), f"{name}.score")
        self._turn = ui.with_object_name(ui.ElidedLabel(), f"{name}.turn")
        self.action_buttons = ui.with_object_name(ActionButtons(), f"{name}.actions")
        self.action_buttons.pressed.connect(lambda number: self.input_given.emit(Act(action=number)))
        self.keys = KeyCapture(self)
        self.keys.watch(self, self.grid, self.raw, self.frames, self.frames.grid, self.tabs, self.tabs.tabBar())
        self.keys.keys_changed.connect(self.input_given)
        self.keys.left.connect(self.escaped)
        self.keys.focus_changed.connect(self._on_focus_changed, Qt.ConnectionType.QueuedConnection)
        ui.column(
            self.title,
            self._problem,
            self._log,
            (self._open_log, Qt.AlignmentFlag.AlignLeft),
            (self._retry, Qt.AlignmentFlag.AlignLeft),
            (self.tabs, 1),
            self._score,
            self._turn,
            self.action_buttons,
            parent=self,
            margins=(theme.GAP, 0, 0, 0),
            spacing=4,
        )
        session.changed.connect(self._show_session)
        session.state_changed.connect(self._show_state)
        workbench.theme_changed.connect(self.grid.update)
        self._show_session()

    # --- what is shown

    @property
    def current_tab(self) -> str:
        return self.tabs.tabText(self.tabs.currentIndex())

    def show_tab(self, title: str) -> None:
        titles = [self.tabs.tabText(index) for index in range(self.tabs.count())]
        self.tabs.setCurrentIndex(titles.index(title))

    def take_focus(self) -> None:
        """Let the keys go to the session."""
        self.setFocus(Qt.FocusReason.OtherFocusReason)

    def _on_tab_changed(self) -> None:
        if self.current_tab == REPLAY:  # a process simulates the episodes: not before someone wants to see them
            self.replay.show_run(self._session.run_id)
        self._show_state()

    def _show_session(self) -> None:
        session = self._session
        self._log.setText(session.log_tail)
        self._log.setVisible(bool(session.log_tail))
        self._open_log.setVisible(bool(session.log_tail))
        if session.run_id is not None:
            self.frames.show_run(session.run_id)
        self._show_state()

    def _show_log(self) -> None:
        if self._session.run_id is not None:
            self._workbench.select(self._session.run_id, "logs")

    def _show_state(self) -> None:
        session, state = self._session, self._session.state
        failure = state.failure if state is not None and session.is_playing else ""
        self._problem.setText(session.problem or failure)
        self._problem.setVisible(bool(session.problem or failure))
        self._retry.setVisible(bool(failure))
        is_human = session.is_playing and session.has_human
        self.keys.set_active(is_human and self.current_tab != REPLAY)
        if state is None:
            self.grid.show_symbols(None, session.status or "Choose what to play at the left, then press Start.")
            self.raw.setPlainText("")
            self._score.setText("")
            self._turn.setText("")
            self.action_buttons.hide()
            return
        if self._shown_run != session.run_id:
            self._shown_run = session.run_id
            self._choose_tab(state)
        self.grid.show_symbols(state.symbols, NO_GRID)
        if self.raw.isVisible():
            self._show_raw(format_raw(state))
        self._score.setText(format_score(state))
        self._score.setToolTip(format_score(state))
        self._show_turn(state)
        self.keys.mapped = frozenset(key for binding in state.keys for key in binding.keys)
        if self.action_buttons.show_actions(state.action_names, state.keys or self.other_keys):
            self.keys.watch(*self.action_buttons.buttons)
        seat = next((seat for seat in state.seats if seat.is_human and seat.is_to_act), None)
        self.action_buttons.setVisible(session.has_human or self.is_stepped)
        self.action_buttons.enable_actions(
            session.is_playing and seat is not None, seat.legal_actions if seat else None
        )

    def _choose_tab(self, state: SessionState) -> None:
        """Show the frames of an environment without a grid, and of a new session not the replay of the last one."""
        if state.symbols is None and self.current_tab == GRID:
            self.show_tab(VIDEO)
        elif state.symbols is not None and self.current_tab in (VIDEO, REPLAY):
            self.show_tab(GRID)
        elif self.current_tab == REPLAY:
            self.show_tab(VIDEO)

    def _show_raw(self, text: str) -> None:
        """Replace the text unless some of it is selected, so that it can be copied while the session runs."""
        if text != self.raw.toPlainText() and not self.raw.textCursor().hasSelection():
            place = self.raw.verticalScrollBar().value()
            self.raw.setPlainText(text)
            self.raw.verticalScrollBar().setValue(place)

    def _show_turn(self, state: SessionState) -> None:
        is_paused = state.is_paused and not self.is_stepped
        text, is_problem = format_turn(state, self._session.is_playing, is_paused)
        if self.keys.is_active and not self._has_focus() and not is_problem:
            text = f"Click the game to play with the keys{SEPARATOR}{text}"
        if self._session.status:
            text = self._session.status
        elif not self._session.is_active:
            text = "The session has ended."
        self._turn.setText(text)
        self._turn.setToolTip(text)
        ui.set_properties(self._turn, error=is_problem, muted=not (is_problem or state.waits_for_key))

    def _has_focus(self) -> bool:
        focused = self.focusWidget() if self.window().isActiveWindow() else None
        return focused is not None and (focused is self or self.isAncestorOf(focused))

    def _on_focus_changed(self) -> None:
        if self._session.state is not None:
            self._show_turn(self._session.state)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.take_focus()
        super().mousePressEvent(event)


def format_score(state: SessionState) -> str:
    """`Episode 2   step 14   reward 0   return 1`; with several agents, the return of each."""
    parts = [f"Episode {state.episode:,}", f"step {state.step:,}"]
    if len(state.seats) == 1:
        (seat,) = state.seats
        parts.append(f"reward {format_si_number(seat.last_reward)}")
        parts.append(f"return {format_si_number(seat.episodic_return)}")
        if state.complete_episodes:
            parts.append(f"mean of {state.complete_episodes:,}: {format_si_number(seat.mean_return or 0.0)}")
    else:
        for seat in state.seats:
            won = f", {seat.wins} won" if state.complete_episodes else ""
            parts.append(f"{seat.agent} ({seat.actor}): {format_si_number(seat.episodic_return)}{won}")
    for seat in state.seats:
        parts += [f"{seat.agent + ': ' if seat.agent else ''}{totals.describe()}" for totals in seat.totals]
    parts.append(f"seed {state.seed}")
    return SEPARATOR.join(parts)


def format_turn(state: SessionState, is_playing: bool, is_paused: bool) -> tuple[str, bool]:
    """Return who acts, or why the last input was not an action; and whether it is the latter."""
    problems = [f"{seat.agent}: {seat.problem}" if seat.agent else seat.problem for seat in state.seats if seat.problem]
    if problems and not state.failure:
        return " ".join(problems), True
    if state.waits_for_key and is_playing:
        return "Press a key to start", False
    if state.ending != "running":
        return f"The episode is over: {state.ending}.", False
    parts = []
    if is_paused:
        parts.append("Paused")
    acting = [seat for seat in state.seats if seat.is_to_act]
    if acting and is_playing:
        parts.append(_format_acting(acting))
    parts += [
        f"last action{' of ' if seat.agent else ''}{seat.agent}: {seat.last_action.replace('_', ' ')}"
        for seat in state.seats
        if seat.last_action
    ]
    return SEPARATOR.join(parts), False


def _format_acting(acting: Iterable[SeatState]) -> str:
    return ", ".join(
        f"{seat.agent}: {'your turn' if seat.is_human else f'{seat.actor} acts'}"
        if seat.agent
        else ("Your turn" if seat.is_human else f"{seat.actor} acts")
        for seat in acting
    )


def format_raw(state: SessionState) -> str:
    """Return the environment's text, the observation, the info and the actions."""
    actions = "\n".join(f"{number:>3}  {name}" for number, name in enumerate(state.action_names))
    parts = {
        "Text": _COLOR_CODE.sub("", state.text).rstrip(),
        "Observation": state.observation,
        "Info": state.info,
        "Actions": actions,
    }
    return "\n\n".join(f"{title}\n{text}" for title, text in parts.items() if text)
