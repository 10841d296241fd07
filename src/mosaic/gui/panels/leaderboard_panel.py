"""All evaluated policies of the workspace, the better and the surer ones first."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from mosaic.formatting import format_ago, format_si_number, format_timestamp, short_id
from mosaic.gui import theme
from mosaic.gui.models.evaluation_model import Evaluations
from mosaic.gui.views.empty_state import EmptyState
from mosaic.gui.views.read_only_table import ReadOnlyTable, format_interval
from mosaic.gui.views.run_chips import dot_icon
from mosaic.gui.views.widgets import accent_button, muted_label, with_object_name
from mosaic.gui.workbench import Workbench
from mosaic.statistics.ranking import LeaderboardEntry, rank_policies

COLUMN_TITLES = ("Rank", "Policy", "Environment", "Step", "Episodes", "Mean [95 %]", "IQM", "Evaluated")
ALL_ENVIRONMENTS = "All environments"
RANKING_TEXT = (
    "Ranked for each environment by the lower end of the 95 % interval of the mean return: a policy that was tried "
    "more often is surer. The newest evaluation of a checkpoint counts, with all its batches."
)


class LeaderboardTable(ReadOnlyTable):
    text_columns = (1, 2)

    def __init__(self) -> None:
        super().__init__("leaderboard.places")
        self.setSelectionBehavior(ReadOnlyTable.SelectionBehavior.SelectRows)
        self.setSelectionMode(ReadOnlyTable.SelectionMode.SingleSelection)

    def fill(self, places: list[LeaderboardEntry]) -> None:
        self.reset_rows(len(places), COLUMN_TITLES)
        for row, place in enumerate(places):
            self.set_cell(row, 0, str(place.rank))
            self.set_cell(row, 1, policy_label(place), place.policy_path).setIcon(
                dot_icon(theme.run_colour(place.trained.run_id if place.trained else place.run_id))
            )
            self.set_cell(row, 2, place.env_id)
            self.set_cell(row, 3, format_si_number(place.step), "" if place.step is None else f"{place.step:,}")
            self.set_cell(row, 4, format_si_number(place.episodes))
            self.set_cell(row, 5, format_interval(place.mean))
            self.set_cell(row, 6, format_si_number(place.iqm))
            self.set_cell(row, 7, format_ago(place.evaluated_at), format_timestamp(place.evaluated_at))


def policy_label(place: LeaderboardEntry) -> str:
    """`ppo · seed 1 · ABC123`; a policy that belongs to no run here is named by its file."""
    parts = [place.algo if place.is_deterministic else f"{place.algo} (stochastic)"]
    if place.trained is None:
        parts.append(place.policy_label)
    else:
        seed = place.trained.seed
        parts += ([] if seed is None else [f"seed {seed}"]) + [short_id(place.trained.run_id)]
    return " · ".join(parts)


class LeaderboardPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._places: list[LeaderboardEntry] = []
        self._visible_places: list[LeaderboardEntry] = []
        self._evaluations = Evaluations(workbench.bridge, self)
        self._evaluations.changed.connect(self._rank_evaluations)
        self._build()
        workbench.bridge.connected.connect(lambda _: self._follow_evaluations())
        workbench.theme_changed.connect(self._fill)

    def _build(self) -> None:
        heading = QLabel("Leaderboard")
        heading.setFont(theme.heading_font())
        self.env_choice = with_object_name(QComboBox(), "leaderboard.env")
        self.env_choice.setMinimumWidth(200)
        self.env_choice.addItem(ALL_ENVIRONMENTS, "")
        self.env_choice.currentIndexChanged.connect(lambda _: self._fill())
        self.evaluation_button = with_object_name(QPushButton("Show evaluation"), "leaderboard.evaluation")
        self.evaluation_button.setToolTip("The run that evaluated this policy (Return, or a double click)")
        self.evaluation_button.clicked.connect(lambda: self._open_run(is_training=False))
        self.training_button = with_object_name(QPushButton("Show training"), "leaderboard.trained")
        self.training_button.setToolTip("The run that trained this policy")
        self.training_button.clicked.connect(lambda: self._open_run(is_training=True))
        head = QHBoxLayout()
        head.setSpacing(theme.GAP)
        head.addWidget(heading)
        head.addSpacing(theme.GAP)
        head.addWidget(self.env_choice)
        head.addStretch(1)
        head.addWidget(self.evaluation_button)
        head.addWidget(self.training_button)
        self.table = LeaderboardTable()
        self.table.itemSelectionChanged.connect(self._update_buttons)
        self.table.doubleClicked.connect(lambda _: self._open_run(is_training=False))
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP)
        column.addWidget(muted_label(RANKING_TEXT))
        column.addWidget(self.table, 1)
        button = accent_button("Evaluate a policy", "leaderboard.start")
        button.clicked.connect(lambda: self._workbench.page_requested.emit("policy"))
        empty = EmptyState("No policy has been evaluated yet", "Evaluate some, and they are ranked here.", button)
        self._stack = QStackedWidget()
        self._stack.addWidget(empty)
        self._stack.addWidget(inside)
        outside = QVBoxLayout(self)
        outside.setContentsMargins(theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        outside.setSpacing(theme.GAP)
        outside.addLayout(head)
        outside.addWidget(self._stack, 1)
        self._fill()

    # --- what there is

    def _follow_evaluations(self) -> None:
        if self.isVisible():
            self._evaluations.watch_run("")

    def _rank_evaluations(self) -> None:
        found = self._evaluations.evaluations
        self._workbench.bridge.run_in_background(
            lambda: rank_policies(found), self._show_places, self._workbench.show_error, self
        )

    def _show_places(self, places: list[LeaderboardEntry]) -> None:
        self._places = places
        envs = list(dict.fromkeys(place.env_id for place in places))
        chosen = self.env_choice.currentData()
        self.env_choice.blockSignals(True)
        self.env_choice.clear()
        self.env_choice.addItem(ALL_ENVIRONMENTS, "")
        for env in envs:
            self.env_choice.addItem(env, env)
        self.env_choice.setCurrentIndex(max(0, self.env_choice.findData(chosen)))
        self.env_choice.blockSignals(False)
        self._fill()

    def _fill(self) -> None:
        chosen = self._selected_place()
        wanted = self.env_choice.currentData()
        self._visible_places = [place for place in self._places if wanted in ("", place.env_id)]
        self._stack.setCurrentIndex(1 if self._places else 0)
        self.env_choice.setVisible(bool(self._places))
        for button in (self.evaluation_button, self.training_button):
            button.setVisible(bool(self._places))
        self.table.fill(self._visible_places)
        if chosen is not None:
            again = [row for row, place in enumerate(self._visible_places) if place.run_id == chosen.run_id]
            self.table.selectRow(again[0]) if again else self.table.clearSelection()
        self._update_buttons()

    # --- going on

    def _selected_place(self) -> LeaderboardEntry | None:
        rows = self.table.selectionModel().selectedRows()
        return self._visible_places[rows[0].row()] if rows and rows[0].row() < len(self._visible_places) else None

    def _update_buttons(self) -> None:
        place = self._selected_place()
        self.evaluation_button.setEnabled(place is not None)
        self.training_button.setEnabled(place is not None and place.trained is not None)

    def _open_run(self, is_training: bool) -> None:
        place = self._selected_place()
        if place is not None:
            run_id = place.trained.run_id if is_training and place.trained else place.run_id
            self._workbench.select(run_id, "overview")

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._open_run(is_training=False)
        else:
            super().keyPressEvent(event)

    # --- being looked at

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._follow_evaluations()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._evaluations.suspend()
