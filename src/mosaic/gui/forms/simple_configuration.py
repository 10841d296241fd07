"""What to play: an environment and who acts in it."""

from __future__ import annotations

import json
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLineEdit, QWidget

from mosaic.contracts.play import ANY_AGENT, HUMAN
from mosaic.gui.forms.actor_field import ActorField
from mosaic.gui.models.play_request import PlayRequest
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench


class SimpleConfiguration(QWidget):
    changed = Signal()

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._env_id = ui.with_object_name(QLineEdit("FrozenLake-v1"), "play.env_id")
        self._env_kwargs = ui.with_object_name(QLineEdit('{"is_slippery": false}'), "play.env_kwargs")
        self._seed = ui.with_object_name(QLineEdit("1"), "play.seed")
        self._actor = ActorField(workbench, "play.actor", (("Human", HUMAN),))
        self._standby = ActorField(workbench, "play.standby", (("None", ""),))
        for field in (self._env_id, self._env_kwargs, self._seed):
            field.textChanged.connect(lambda _: self._on_change())
        for box in (self._actor, self._standby):
            box.currentTextChanged.connect(lambda _: self._on_change())
        ui.column(
            ui.section_label("Environment"), self._env_id,
            ui.section_label("Settings"), self._env_kwargs,
            ui.section_label("Seed"), self._seed,
            ui.section_label("Actor"), self._actor,
            ui.section_label("In reserve"), self._standby,
            ui.Stretch(), parent=self, spacing=4,
        )  # fmt: skip
        self._on_change()

    def _on_change(self) -> None:
        for box in (self._actor, self._standby):
            box.set_environment(self._env_id.text().strip())
        self.changed.emit()

    def payload_request(self) -> PlayRequest:
        settings: dict[str, Any] = {"seed": int(self._seed.text())}
        if text := self._env_kwargs.text().strip():
            settings["env_kwargs"] = json.loads(text)
        if standby := self._standby.actor():
            kind, _, target = standby.partition(":")
            settings["standby"] = {"kind": kind, "target": target}
        return PlayRequest(self._env_id.text().strip(), {ANY_AGENT: self._actor.actor()}, {}, settings)

    def problem(self) -> str:
        try:
            self.payload_request()
        except ValueError as error:
            return f"The settings are not valid: {error}"
        return "" if self._env_id.text().strip() else "Choose an environment."

    def set_locked(self, is_locked: bool) -> None:
        self.setEnabled(not is_locked)
