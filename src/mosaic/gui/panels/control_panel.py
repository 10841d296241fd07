"""The control panel: the three ways to begin, always at hand."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from mosaic.contracts.errors import BadInput
from mosaic.gui import theme
from mosaic.gui.models.draft import summary_line
from mosaic.gui.models.policy_form import policy_workers
from mosaic.gui.panels.train_panel import train_now
from mosaic.gui.views.widgets import muted_label, with_object_name
from mosaic.gui.workbench import Workbench


class ControlPanel(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._configure = self._create_button("Configure Agent…", "control.configure", "Choose what to train (Ctrl+N)")
        self._configure.clicked.connect(lambda: workbench.form_requested.emit(None))
        self._train = self._create_button("Train Agent", "control.train", "")
        self._train.clicked.connect(lambda: train_now(workbench))
        self._policy = self._create_button("Load Trained Policy…", "control.policy", "Evaluate what was trained")
        self._policy.clicked.connect(lambda: workbench.page_requested.emit("policy"))
        self._policy.setVisible(False)
        self._last = muted_label("", "control.last")
        self._last.setWordWrap(False)
        self._last.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.MARGIN, 4, theme.MARGIN, theme.GAP)
        column.setSpacing(theme.GAP)
        first = QHBoxLayout()
        first.setSpacing(theme.GAP)
        first.addWidget(self._configure, 1)
        first.addWidget(self._train, 1)
        column.addLayout(first)
        column.addWidget(self._policy)
        column.addWidget(self._last)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        workbench.training.draft_edited.connect(self._refresh)
        workbench.training.draft_replaced.connect(self._refresh)
        workbench.theme_changed.connect(self._apply_theme)
        self._apply_theme()
        # Looking for workers and reading their schemas can wait until the window is drawn.
        QTimer.singleShot(0, self, self._refresh)

    def _create_button(self, text: str, name: str, tip: str) -> QPushButton:
        button = with_object_name(QPushButton(text), name)
        button.setToolTip(tip)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        return button

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

    def _apply_theme(self) -> None:
        self._configure.setIcon(theme.icon("mdi6.tune-variant"))
        self._train.setIcon(theme.icon("mdi6.play"))
        self._policy.setIcon(theme.icon("mdi6.folder-open-outline"))
