"""The control panel: the three ways to begin, always at hand."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QSizePolicy, QWidget

from mosaic.contracts.errors import BadInput
from mosaic.gui import theme
from mosaic.gui.models.draft import summary_line
from mosaic.gui.models.policy_form import policy_workers
from mosaic.gui.panels.train_panel import train_now
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench


class ControlPanel(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        configure = ui.button(
            "Configure Agent…",
            "control.configure",
            lambda: workbench.form_requested.emit(None),
            "Choose what to train (Ctrl+N)",
            "mdi6.tune-variant",
        )
        self._train = ui.button("Train Agent", "control.train", lambda: train_now(workbench), icon="mdi6.play")
        self._policy = ui.button(
            "Load Trained Policy…",
            "control.policy",
            lambda: workbench.page_requested.emit("policy"),
            "Evaluate what was trained",
            "mdi6.folder-open-outline",
        )
        self._policy.setVisible(False)
        for widget in (configure, self._train, self._policy):
            widget.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._last = ui.muted_label("", "control.last")
        self._last.setWordWrap(False)
        self._last.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        buttons = ui.row((configure, 1), (self._train, 1))
        ui.column(buttons, self._policy, self._last, parent=self, margins=(theme.MARGIN, 4, theme.MARGIN, theme.GAP))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        workbench.training.draft_edited.connect(self._refresh)
        workbench.training.draft_replaced.connect(self._refresh)
        # Looking for workers and reading their schemas can wait until the window is drawn.
        QTimer.singleShot(0, self, self._refresh)

    def _refresh(self) -> None:
        self._policy.setVisible(bool(policy_workers()))
        training = self._workbench.training
        try:
            summary = summary_line(training.draft, training.layout)
        except BadInput as error:
            self._train.setEnabled(False)
            self._train.setToolTip(str(error))
            self._last.setText("")
            return
        self._train.setToolTip(f"Submit {summary} at once (Ctrl+Shift+Return)")
        self._last.setText(f"Next: {summary}")
        self._last.setToolTip(summary)
