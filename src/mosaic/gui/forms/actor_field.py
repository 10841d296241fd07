"""A field for an actor: one of a list, or typed, such as `script:walk.py`."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QComboBox

from mosaic.contracts.options import RunKind
from mosaic.formatting import run_title
from mosaic.gui.workbench import Workbench

RANDOM = "random"


class ActorField(QComboBox):
    """Offers the actors that need nothing but a choice: chance, and the policies of the environment's runs."""

    def __init__(self, workbench: Workbench, name: str, others: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__()
        self._workbench = workbench
        self._others = others
        self._env_id = ""
        self.setObjectName(name)
        self.setEditable(True)
        self.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(14)
        self.setToolTip("Who acts: choose one, or type one such as script:FILE, bdi:FILE or llm:MODEL")
        for signal in (workbench.runs.reset, workbench.runs.changed):
            signal.connect(self._refill)
        self._refill()

    def set_environment(self, env_id: str) -> None:
        if env_id != self._env_id:
            self._env_id = env_id
            self._refill()

    def actor(self) -> str:
        """Return the chosen actor, such as `policy:RUN`."""
        text = self.currentText().strip()
        index = self.findText(text, Qt.MatchFlag.MatchExactly)
        return str(self.itemData(index)) if index >= 0 else text

    def choose(self, actor: str) -> None:
        index = self.findData(actor)
        if index >= 0:
            self.setCurrentIndex(index)
        else:
            self.setEditText(actor)

    def _refill(self, *_: object) -> None:
        runs = [
            view
            for view in self._workbench.runs.all()
            if view.env_id == self._env_id and view.kind == RunKind.TRAIN and view.checkpoint_step is not None
        ]
        runs.sort(key=lambda view: view.run_id, reverse=True)
        rows = [*self._others, ("Random", RANDOM)]
        rows += [(f"{run_title(view)} ({view.run_id[-6:]})", f"policy:{view.run_id}") for view in runs]
        if rows == [(self.itemText(at), self.itemData(at)) for at in range(self.count())]:
            return
        current = self.actor() if self.count() else ""
        with QSignalBlocker(self):
            self.clear()
            for title, actor in rows:
                self.addItem(title, actor)
            self.choose(current or str(rows[0][1]))
