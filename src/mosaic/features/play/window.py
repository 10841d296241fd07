"""The play page: what is played at the left, the session with its toolbar at the right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QIntValidator, QMouseEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QLineEdit, QWidget

from mosaic.base.formatting import format_si_number, run_title
from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.options import RunKind
from mosaic.contracts.play import Act, HandBack
from mosaic.contracts.views import RunView, SeatState, SessionState
from mosaic.features.play.core import ActorRequest
from mosaic.features.play.window_actors import ActorBox
from mosaic.features.play.window_board import SymbolGridView
from mosaic.features.play.window_config import GameConfiguration
from mosaic.features.play.window_draft import ActorDraft
from mosaic.features.play.window_keys import ActionButtons, KeyCapture
from mosaic.features.play.window_sessions import OWN_SPEED, PlayMatch, PlaySession, Speed
from mosaic.features.replay.window import ReplayView
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.frames import FramesView
from mosaic.window.labels import MonospaceView
from mosaic.window.specs import Page
from mosaic.window.workbench import Workbench

# --- One play session on the screen: its tabs, the buttons of its actions, and the score.


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


# --- The play page: what is played at the left, the session with its toolbar at the right.


SPEEDS: tuple[tuple[str, Speed], ...] = (
    ("Own speed", OWN_SPEED),
    *((f"{rate} per second", float(rate)) for rate in (1, 2, 5, 10, 30, 60)),
    ("Fastest", None),
)
CONFIGURATION_WIDTH = 340
MIN_SESSION_WIDTH = 400
"""Where there is less, the configuration is hidden while something is played."""
PLAYED_STAGES = ("running", "paused")
MAX_SEED = 2**31 - 1


class PlayPage(QWidget):
    """Creates its content when it is first shown, so that the window opens without waiting for it."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._column = ui.column(parent=self)

    def showEvent(self, event: QShowEvent) -> None:
        if self._column.count() == 0:
            self._column.addWidget(PlayView(self._workbench))
        super().showEvent(event)


class PlayView(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self.match = PlayMatch(workbench.bridge, workbench.runs, workbench.is_remote, self)
        self.configuration = GameConfiguration(workbench)
        self._views = [
            ui.with_object_name(SessionView(workbench, session, name), name)
            for session, name in ((self.match.first, "play.session"), (self.match.second, "play.second"))
        ]
        for view in self._views:
            view.input_given.connect(self.match.send_input)
            view.escaped.connect(self._leave)
        self._build_toolbar()
        self._second = self._build_second()
        self._configuration = ui.widget_column((self.configuration, 1), self._second, margins=(0, 0, theme.GAP, 0))
        self._result = ui.with_object_name(ui.ElidedLabel(), "play.result")
        self._result.setContentsMargins(theme.GAP, 0, 0, 0)
        ui.set_properties(self._result, section=True)
        sessions = ui.splitter(Qt.Orientation.Horizontal, *self._views, sizes=[1, 1], stretch=0)
        sessions.setStretchFactor(1, 1)
        self._split = ui.splitter(
            Qt.Orientation.Horizontal,
            self._configuration,
            ui.widget_column(self._result, (sessions, 1)),
            sizes=[CONFIGURATION_WIDTH, 900],
            stretch=1,
            name="play.split",
        )
        # Below all: where it appears, as another program starts a session, nothing else moves.
        self._build_offer()
        ui.column(self._toolbar, (self._split, 1), self._offer, parent=self, margins=ui.PAGE_MARGINS)
        self.configuration.changed.connect(self._on_configured)
        self.match.changed.connect(self._refresh)
        for signal in (workbench.runs.changed, workbench.runs.reset):
            signal.connect(lambda *_: self._show_offer())
        workbench.closing.connect(self.match.close)
        self._on_configured()

    # --- building

    def _build_toolbar(self) -> None:
        self._configure = ui.tool_button(
            "play.configure",
            "mdi6.dock-left",
            "Show or hide the configuration",
            self._toggle_configuration,
            is_checkable=True,
        )
        self._configure.setChecked(True)
        self._is_configuration_open = True
        self._is_configuration_wanted = False
        """Whether it was shown on request while something is played in a narrow window."""
        self._start = ui.accent_button("Start", "play.start", self._start_or_stop)
        self._pause = ui.tool_button("play.pause", "mdi6.pause", "Pause", self._toggle_pause)
        self._step = ui.tool_button("play.step", "mdi6.skip-next", "One step", self.match.step)
        self._reset = ui.tool_button(
            "play.reset", "mdi6.restart", "Start another episode, with the seed in the field", self._reset_episode
        )
        self._seed = ui.with_object_name(QLineEdit(), "play.reset_seed")
        self._seed.setPlaceholderText("next seed")
        self._seed.setToolTip("The seed of the next reset; empty: the one after the last")
        self._seed.setValidator(QIntValidator(0, MAX_SEED, self._seed))
        self._seed.setFixedWidth(self.fontMetrics().horizontalAdvance("next seed") + 24)
        self._speed = ui.combo_box("play.speed", SPEEDS, "Steps per second")
        self._speed.activated.connect(lambda _: self.match.set_speed(self._chosen_speed()))
        self._switch = ui.tool_button(
            "play.switch", "mdi6.swap-horizontal", "Who acts", self.match.switch_actor, "Take over"
        )
        self._compare = ui.tool_button(
            "play.compare",
            "mdi6.compare",
            "Compare with a second player, in the same environment with the same seed",
            self._refresh,
            "Compare",
            is_checkable=True,
        )
        self._toolbar = ui.row(
            *(self._configure, self._start, self._pause, self._step, self._reset, self._seed, theme.GAP),
            *(self._speed, theme.GAP, self._switch, ui.Stretch(), self._compare),
            spacing=4,
        )

    def _build_second(self) -> QWidget:
        self._second_draft = ActorDraft()
        self._second_box = ActorBox(self._workbench, "play.second_actor")
        self._second_box.edited.connect(self._on_second_edited)
        note = ui.muted_label("Plays the same with the same seed; both are stepped together.")
        return ui.widget_column(ui.section_label("Second player"), note, self._second_box)

    def _build_offer(self) -> None:
        """The row with a session that is running and not shown, as from a window that was closed."""
        self._offer = ui.with_object_name(QFrame(), "play.offer")
        self._offer.setProperty("banner", True)
        self._offer_text = ui.ElidedLabel()
        show = ui.button("Show it", "play.attach", self._attach)
        ui.row((self._offer_text, 1), show, parent=self._offer, margins=(theme.MARGIN, 4, 4, 4))

    def _chosen_speed(self) -> Speed:
        speed: Speed = self._speed.currentData()
        return speed

    def _toggle_configuration(self) -> None:
        self._is_configuration_open = self._is_configuration_wanted = self._configure.isChecked()
        self._show_configuration()

    # --- commands

    def _start_or_stop(self) -> None:
        if self.match.is_active:
            self.match.stop()
            return
        if problem := self.configuration.problem():
            self._workbench.show_message(problem, "bad")
            return
        second = None
        if self._compare.isChecked():
            if problem := self._second_draft.problem():
                self._second_box.show_warning(problem)
                return
            second = ActorRequest(self._second_draft.text, self._second_draft.options.values())
        self.match.start(self.configuration.payload_request(), second, self._chosen_speed())
        self._is_configuration_wanted = False
        self._refresh()
        self._views[0].take_focus()

    def _attach(self) -> None:
        if (view := self._find_other_session()) is not None and not self.match.is_active:
            self._compare.setChecked(False)
            self.match.attach(view.run_id)
            self._views[0].take_focus()

    def _toggle_pause(self) -> None:
        self.match.set_paused(not self.match.is_paused)
        self._views[0].take_focus()

    def _reset_episode(self) -> None:
        self.match.reset(int(self._seed.text()) if self._seed.text() else None)
        self._views[0].take_focus()

    def _leave(self) -> None:
        self._start.setFocus(Qt.FocusReason.OtherFocusReason)

    # --- what is shown

    def _on_configured(self) -> None:
        self._second_box.show_draft(self._second_draft, self.configuration.env_id)
        self._refresh()

    def _find_other_session(self) -> RunView | None:
        """Return the newest session that is running."""
        views = [
            view for view in self._workbench.runs.all() if view.kind == RunKind.PLAY and view.stage in PLAYED_STAGES
        ]
        return max(views, key=lambda view: view.age_key, default=None)

    def _show_offer(self) -> None:
        view = None if self.match.is_active else self._find_other_session()
        self._offer.setVisible(view is not None)
        if view is not None:
            self._offer_text.setText(f"A session is running: {run_title(view)}")
            self._offer_text.setToolTip(f"{run_title(view)} ({view.run_id})")

    def _on_second_edited(self, draft: ActorDraft) -> None:
        self._second_draft = draft
        self._second_box.show_warning("")

    def _refresh(self) -> None:
        match = self.match
        is_active, is_playing, is_paused = match.is_active, match.is_playing, match.is_paused
        self._start.setText("Stop" if is_active else "Start")
        self._start.setIcon(theme.icon("mdi6.stop" if is_active else "mdi6.play", "surface"))
        self._start.setEnabled(is_active or not self.configuration.problem())
        self._start.setToolTip("" if is_active else self.configuration.problem())
        self._pause.setIcon(theme.icon("mdi6.play" if is_paused else "mdi6.pause"))
        self._pause.setToolTip("Resume" if is_paused else "Pause")
        for button in (self._pause, self._reset):
            button.setEnabled(is_playing)
        self._step.setEnabled(is_playing and is_paused)
        switch = match.switch
        self._switch.setEnabled(is_playing and switch is not None)
        self._switch.setText("Hand back" if switch is HandBack else "Take over")
        self._compare.setEnabled(not is_active)
        with QSignalBlocker(self._compare):
            if is_active:
                self._compare.setChecked(match.is_compared)
        self.configuration.set_locked(is_active)
        is_compared = self._compare.isChecked()
        self._show_configuration()
        self._show_offer()
        self._second.setVisible(is_compared)
        self._second.setEnabled(not is_active)
        self._views[1].setVisible(is_compared and match.second.request is not None)
        has_both = is_compared and match.is_compared and all(session.state is not None for session in match.sessions)
        self._result.setVisible(has_both)
        for view, session in zip(self._views, (match.first, match.second), strict=True):
            view.is_stepped = match.is_compared
            view.title.setVisible(is_compared)
            view.title.setText(_player(session))
        if has_both:
            self._views[1].other_keys = () if match.first.state is None else match.first.state.keys
            self._result.setText(self._format_result())
            self._result.setToolTip(self._result.text())

    def _show_configuration(self) -> None:
        """Hide it in a narrow window while something is played, unless it is wanted."""
        needed = CONFIGURATION_WIDTH + MIN_SESSION_WIDTH * len(self.match.sessions)
        is_narrow = self.match.is_active and self.width() < needed
        is_visible = self._is_configuration_wanted if is_narrow else self._is_configuration_open
        with QSignalBlocker(self._configure):
            self._configure.setChecked(is_visible)
        self._configuration.setVisible(is_visible)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_configuration()

    def _format_result(self) -> str:
        """`human 2 : 1 random   1 drawn   mean return 0.667 : 0.333`."""
        match = self.match
        first, second = (_player(session) for session in match.sessions)
        parts = [f"{first} {match.wins[0]} : {match.wins[1]} {second}", f"{match.draws} drawn"]
        means = [_mean_return(session) for session in match.sessions]
        if None not in means:
            parts.append(f"mean return {' : '.join(format_si_number(mean or 0.0) for mean in means)}")
        return "   ".join(parts)


def _mean_return(session: PlaySession) -> float | None:
    return session.state.seats[0].mean_return if session.state is not None and session.state.seats else None


def _player(session: PlaySession) -> str:
    """Return who acts in a session."""
    if session.state is not None and session.state.seats:
        return session.state.seats[0].actor
    return next(iter(session.request.actors.values()), "") if session.request is not None else ""


PAGES = (Page("play", "Play", "mdi6.gamepad-variant-outline", PlayPage, position=8),)
