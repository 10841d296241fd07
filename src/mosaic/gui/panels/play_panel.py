"""The play page: what is played at the left, the session with its toolbar at the right."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtGui import QIntValidator, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QLineEdit, QWidget

from mosaic.api.play_payload import ActorRequest
from mosaic.contracts.options import RunKind
from mosaic.contracts.play_commands import HandBack
from mosaic.contracts.views import RunView
from mosaic.formatting import format_si_number, run_title
from mosaic.gui import theme
from mosaic.gui.forms.actor_box import ActorBox
from mosaic.gui.forms.game_configuration import GameConfiguration
from mosaic.gui.models.game_draft import ActorDraft
from mosaic.gui.models.play_sessions import OWN_SPEED, PlayMatch, PlaySession, Speed
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.session_view import SessionView
from mosaic.gui.workbench import Workbench

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
