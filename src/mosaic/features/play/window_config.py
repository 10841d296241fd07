"""What is played and by whom: the environment and its settings, the control mode, the actors, the session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QGridLayout, QPushButton, QWidget

from mosaic.contracts.errors import BadInput
from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.play import PLAY_WORKER
from mosaic.contracts.views import EnvironmentDetails
from mosaic.features.play.core import build_play_payload
from mosaic.features.play.window_actors import ActorBox
from mosaic.features.play.window_draft import (
    DEFAULT_ENVIRONMENT,
    ENVIRONMENT_FIELDS,
    SESSION_FIELDS,
    TURN_FIELD,
    ActorDraft,
    ControlMode,
    GameDraft,
    PlayRequest,
    build_request,
    change_key,
    control_modes,
    current_keys,
    editable_actions,
    environment_arguments,
    game_problems,
    valid_changes,
)
from mosaic.features.play.window_keys import key_name
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.environments import environment_problem
from mosaic.window.form import FormView
from mosaic.window.form_model import Refusals
from mosaic.window.form_rows import (
    LABEL_WIDTH,
    MARK_WIDTH,
    EnvironmentRow,
    EnvironmentSettingsRow,
    form_combo,
    shrink_combo,
)
from mosaic.window.workbench import Workbench

CHECK_DELAY_MS = 400
"""After the last key, so that not every prefix of a name is asked about."""
MIN_WIDTH = 340
KEY_WIDTH = 96
SAVED_ENVIRONMENTS = 200
"""Configurations that are remembered."""


class GameConfiguration(FormView):
    changed = Signal()
    """The configuration, or what is known against it."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__(workbench, "play")
        self._draft = GameDraft()
        self._details: EnvironmentDetails | None = None
        """Of the draft's environment; None until the worker has answered."""
        self._refusal = ""
        """Why the worker refuses the draft; empty where it does not, or has not answered yet."""
        self._environment_problem = ""
        self._request_number = 0
        self._checked_number = -1
        """The question that has been answered completely."""
        self._agent_boxes: dict[str, ActorBox] = {}
        self.setMinimumWidth(MIN_WIDTH)
        self._body = self._build()
        ui.column((ui.form_area(self._body, "play.configuration"), 1), parent=self)
        self._check_timer = ui.create_timer(self, CHECK_DELAY_MS, self._ask_environment, is_single_shot=True)
        workbench.environments.environments_loaded.connect(self._on_environments_loaded)
        workbench.bridge.connected.connect(lambda _: self._ask_environment())
        self._open_environment(workbench.settings.get_for_workspace("play_environment", DEFAULT_ENVIRONMENT))

    # --- building

    def _build(self) -> QWidget:
        environment, settings = (self.add_row(field, is_narrow=True) for field in ENVIRONMENT_FIELDS)
        assert isinstance(environment, EnvironmentRow)
        assert isinstance(settings, EnvironmentSettingsRow)
        self._environment, self._settings = environment, settings
        self._about = ui.muted_label("", "play.about")
        self._mode = form_combo("play.mode")
        self._mode.setAccessibleName("Control mode")
        shrink_combo(self._mode)
        self._mode.activated.connect(
            lambda _: self.keep(replace(self._draft, mode=ControlMode(self._mode.currentData())))
        )
        self._turns = self.add_row(TURN_FIELD, is_narrow=True)
        self._agents_column = ui.column()
        self._actor_title = ui.section_label("Active actor")
        self._actor = ActorBox(self._workbench, "play.actor")
        self._actor.edited.connect(lambda actor: self.keep(replace(self._draft, actor=actor)))
        self._keys_title = ui.section_label("Keys")
        self._keys = KeyMap("play.keys")
        self._keys.edited.connect(self._edit_keys)
        self._keys.cleared.connect(
            lambda keys: self._workbench.offer_undo(
                "The keys are those of the catalog again.", "reset the keys", partial(self._edit_keys, keys)
            )
        )
        return ui.widget_column(
            ui.section_label("Environment"),
            self._environment,
            self._about,
            self._settings,
            theme.GAP,
            ui.section_label("Control mode"),
            self._mode,
            self._turns,
            self._agents_column,
            theme.GAP,
            self._actor_title,
            self._actor,
            theme.GAP,
            self._keys_title,
            self._keys,
            theme.GAP,
            ui.section_label("Session"),
            *(self.add_row(field, is_narrow=True) for field in SESSION_FIELDS),
            ui.Stretch(),
            margins=(0, theme.GAP, theme.MARGIN, theme.MARGIN),
        )

    # --- the interface of the page

    def payload_request(self) -> PlayRequest:
        """What a session would be started with. Raises BadInput where a text is invalid."""
        return build_request(self._draft, self._details)

    def problem(self) -> str:
        """Why no session can start with this; empty where nothing is known against it."""
        if found := self.problems() or self._refusals.messages(self._draft):
            return self._draft.describe(found)
        if self._environment_problem or self._refusal:
            return self._environment_problem or self._refusal
        return "" if self._details is not None else "The trainer has not described the environment yet."

    @property
    def env_id(self) -> str:
        return self._draft.env_id

    def configure(self, draft: GameDraft) -> None:
        """Show this configuration, and remember it."""
        self._draft, self._details = draft, None
        self._save()
        self.on_form_changed()

    @property
    def is_checked(self) -> bool:
        """Whether the worker has answered about the configuration as it is now, or need not be asked."""
        return self._checked_number == self._request_number

    def set_locked(self, is_locked: bool) -> None:
        """While a session runs, nothing can be changed; it can still be read and scrolled."""
        self._body.setEnabled(not is_locked)

    # --- the environment

    def _open_environment(self, env_id: Any) -> None:
        """Show what was configured for this environment before."""
        env_id = str(env_id)
        saved = self._saved_drafts()
        self._draft = GameDraft.from_json(saved.get(env_id), env_id)
        self._details = None
        self.on_form_changed()

    def _on_environments_loaded(self, worker: str) -> None:
        if worker == PLAY_WORKER:
            self._environment.show_choices(self._workbench.environments.for_worker(PLAY_WORKER))
            self.refresh()

    def _saved_drafts(self) -> dict[str, Any]:
        saved = self._workbench.settings.get_for_workspace("play_games", {})
        return saved if isinstance(saved, dict) else {}

    def _save(self) -> None:
        saved = {name: one for name, one in self._saved_drafts().items() if name != self._draft.env_id}
        saved = dict(list(saved.items())[-SAVED_ENVIRONMENTS + 1 :]) | {self._draft.env_id: self._draft.to_json()}
        self._workbench.settings.put_for_workspace("play_games", saved)

    # --- asking the worker

    def _ask_environment(self) -> None:
        """Ask what the environment offers with these settings, then whether the actors can act in it."""
        self._check_timer.stop()
        self._request_number += 1
        number, draft, details = self._request_number, self._draft, self._details
        try:
            arguments = environment_arguments(draft, details)
        except BadInput:  # shown at its field
            self._checked_number = number
            return
        if not draft.env_id:
            self._checked_number = number
            return

        def take(answer: EnvironmentDetails) -> None:
            if number != self._request_number:
                return
            self._show_details(answer)
            # What is wrong with its settings is known only when it is described.
            if details is None and "env_kwargs" in draft.texts:
                self._ask_environment()
            else:
                self._ask_actors(number)

        def refuse(error: Exception) -> None:
            if number == self._request_number:
                self._environment_problem = str(error)
                self._checked_number = number
                self.refresh()

        self._workbench.bridge.ask(lambda trainer: trainer.environment(draft.env_id, arguments), take, refuse, self)

    def _show_details(self, details: EnvironmentDetails) -> None:
        self._details = details
        self._environment_problem = details.problem
        self._draft = self._draft.for_details(details)
        if not details.problem:
            self._workbench.settings.put_for_workspace("play_environment", details.id)
        self.refresh()

    def _ask_actors(self, number: int) -> None:
        if self.problems() or self._environment_problem:
            self._checked_number = number
            return
        request = self.payload_request()
        self._workbench.bridge.ask(
            lambda trainer: _check(trainer, request),
            lambda _: self._show_refusal(number, None),
            lambda error: self._show_refusal(number, error),
            self,
        )

    def _show_refusal(self, number: int, error: Exception | None) -> None:
        if number == self._request_number:
            # A policy for another environment is shown at its actor.
            if error is not None and not self._refusals.take(error, self.rows.keys() - {"env_id"}):
                self._refusal = str(error)
            self._checked_number = number
            self.refresh()

    # --- editing

    def _edit_keys(self, keys: dict[str, str]) -> None:
        self.keep(replace(self._draft, keys=keys))

    @property
    def form(self) -> GameDraft:
        return self._draft

    def edit(self, name: str, text: str) -> None:
        if name != "env_id":
            super().edit(name, text)
            return
        env_id = text.split("   ")[0].strip()  # one that is not installed is listed with a hint after its id
        if env_id != self._draft.env_id:
            self._open_environment(env_id)

    def keep(self, form: GameDraft) -> None:
        if form != self._draft:
            self._draft = form
            self._save()
            self.on_form_changed()

    def on_form_changed(self) -> None:
        self._refusal = self._environment_problem = ""
        self._refusals = Refusals()
        self._request_number += 1  # an answer to an earlier question is about another draft
        super().on_form_changed()
        self._check_timer.start()

    def _on_agent_edited(self, agent: str, player: ActorDraft) -> None:
        self.keep(replace(self._draft, agents={**self._draft.agents, agent: player}))

    # --- showing

    def problems(self) -> dict[str, str]:
        found = game_problems(self._draft, self._details)
        listings = self._workbench.environments.for_worker(PLAY_WORKER)
        problem = environment_problem(self._draft.env_id, listings)
        return {"env_id": problem, **found} if problem and "env_id" not in found else found

    def messages(self) -> dict[str, str]:
        found = super().messages()
        return {"env_id": self._environment_problem, **found} if self._environment_problem else found

    def refresh(self) -> None:
        draft, details = self._draft, self._details
        self._settings.show_settings(() if details is None else details.settings)
        super().refresh()
        problems = self.problems()
        self._about.setText(_describe(details))
        self._about.setVisible(details is not None)
        modes = control_modes(details)
        ui.set_choices(self._mode, [(mode.label, mode.value) for mode in modes], draft.mode.value)
        self._turns.setVisible(draft.mode is ControlMode.TURNS)
        self._show_agents()
        self._show_actor(problems)
        has_keys = draft.has_human and details is not None and bool(details.keys)
        self._keys_title.setVisible(has_keys)
        self._keys.setVisible(has_keys)
        if details is not None:
            self._keys.show_keys(details.keys, valid_changes(details.keys, draft.keys))
        self.changed.emit()

    def _show_agents(self) -> None:
        agents = self._draft.agents if self._details is not None and self._details.has_several_agents else {}
        if list(agents) != list(self._agent_boxes):
            ui.clear_layout(self._agents_column)
            self._agent_boxes = {}
            for agent in agents:
                box = ActorBox(self._workbench, f"play.agent.{agent}", has_human=True)
                box.edited.connect(lambda player, agent=agent: self._on_agent_edited(agent, player))
                self._agent_boxes[agent] = box
                self._agents_column.addWidget(ui.section_label(agent))
                self._agents_column.addWidget(box)
        for agent, player in agents.items():
            self._agent_boxes[agent].show_draft(player, self._draft.env_id)

    def _show_actor(self, problems: Mapping[str, str]) -> None:
        has_actor = self._draft.mode.has_actor
        self._actor.setEnabled(has_actor)
        self._actor_title.setEnabled(has_actor)
        self._actor.show_draft(self._draft.actor, self._draft.env_id)
        self._actor.show_warning((problems.get("actor") or self._refusal) if has_actor else "")
        for agent, box in self._agent_boxes.items():
            box.show_warning(problems.get(agent) or ("" if has_actor else self._refusal))


def _check(trainer: TrainerClient, request: PlayRequest) -> None:
    payload = build_play_payload(trainer, request.env_id, request.actors, request.settings, request.options)
    trainer.check(payload)


def _describe(details: EnvironmentDetails | None) -> str:
    if details is None:
        return ""
    actions = f"Actions: {details.action_space}." if details.action_space else ""
    return " ".join(filter(None, (details.about, actions)))


class KeyMap(QWidget):
    edited = Signal(object)
    """The changed keys, by the text of their action."""
    cleared = Signal(object)
    """The keys that were changed before they were reset."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._bindings: tuple[KeyBinding, ...] = ()
        self._changes: dict[str, str] = {}
        self._buttons: dict[str, QPushButton] = {}
        self._waiting: str | None = None
        """The action whose key is pressed next."""
        self._rows = QWidget()
        self._grid = QGridLayout(self._rows)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(theme.GAP)
        self._grid.setVerticalSpacing(theme.GAP // 2)
        self._grid.setColumnMinimumWidth(0, MARK_WIDTH + LABEL_WIDTH)
        self._grid.setColumnStretch(2, 1)
        self._together = ui.muted_label("Keys that are held together combine.", f"{prefix}.together")
        self._problem = ui.muted_label("", f"{prefix}.problem")
        self._problem.setProperty("error", True)
        self._reset = ui.button("Reset keys", f"{prefix}.reset", self._on_reset, "Back to the keys of the catalog")
        ui.column(
            self._rows,
            self._together,
            self._problem,
            ui.row(MARK_WIDTH + theme.GAP // 2, self._reset, ui.Stretch(), spacing=0),
            parent=self,
        )
        self._show_problem("")

    def show_keys(self, bindings: Sequence[KeyBinding], changes: Mapping[str, str]) -> None:
        """Show these keys, without a signal."""
        actions = editable_actions(bindings, changes)
        self._bindings, self._changes = tuple(bindings), dict(changes)
        if actions != list(self._buttons):
            self._build(actions)
        keys = current_keys(bindings, changes)
        for action, button in self._buttons.items():
            if action != self._waiting:
                button.setText(keys[action][0].replace("&", "&&"))
            is_changed = action in changes
            button.setToolTip(f"Click, then press the key for {action!r}{' (changed)' if is_changed else ''}")
        self._together.setVisible(len(actions) < len(keys))
        self._reset.setEnabled(bool(changes))

    def _build(self, actions: Sequence[str]) -> None:
        ui.clear_layout(self._grid)
        self._buttons = {}
        self._waiting = None
        for number, action in enumerate(actions):
            button = ui.button("", f"{self._prefix}.{action}", partial(self._start_waiting, action))
            button.setAccessibleName(f"Key of {action}")
            button.setFixedWidth(KEY_WIDTH)
            button.installEventFilter(self)
            self._buttons[action] = button
            label = ui.PlainLabel(action)
            label.setContentsMargins(MARK_WIDTH + theme.GAP // 2, 0, 0, 0)
            self._grid.addWidget(label, number, 0)
            self._grid.addWidget(button, number, 1)

    def _show_problem(self, text: str) -> None:
        self._problem.setText(text)
        self._problem.setVisible(bool(text))

    # --- changing

    def _start_waiting(self, action: str) -> None:
        self._stop_waiting()
        self._show_problem("")
        self._waiting = action
        self._buttons[action].setText("Press a key…")
        self._buttons[action].setFocus()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting = None
            self.show_keys(self._bindings, self._changes)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """While one is awaited, every key is the new key and nothing else; Escape leaves the old one."""
        if self._waiting is None:
            return False
        if event.type() == QEvent.Type.FocusOut:
            self._stop_waiting()
        elif event.type() == QEvent.Type.ShortcutOverride:
            event.accept()
            return True
        elif isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            self._take(event)
            return True
        return False

    def _take(self, event: QKeyEvent) -> None:
        action = self._waiting
        assert action is not None
        name = key_name(event.key())
        if event.key() == Qt.Key.Key_Escape:
            self._stop_waiting()
        elif name or event.key() not in (Qt.Key.Key_Control, Qt.Key.Key_Alt, Qt.Key.Key_AltGr, Qt.Key.Key_Meta):
            self._stop_waiting()
            try:
                changes = change_key(self._bindings, self._changes, action, name)
            except BadInput as error:
                self._show_problem(str(error))
                return
            self._change(changes)

    def _on_reset(self) -> None:
        before = dict(self._changes)
        self._show_problem("")
        self._change({})
        self.cleared.emit(before)

    def _change(self, changes: dict[str, str]) -> None:
        self.show_keys(self._bindings, changes)
        self.edited.emit(changes)
