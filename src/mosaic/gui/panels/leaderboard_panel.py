"""The leaderboard: all evaluated policies of the workspace, ranked by a confidence bound of their mean return."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.formatting import format_ago, format_si_number, format_timestamp, short_id
from mosaic.gui import theme
from mosaic.gui.models.runs_model import Evaluations
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.tables import Cell, ReadOnlyTable, format_interval
from mosaic.gui.workbench import Workbench
from mosaic.statistics.ranking import LeaderboardEntry, rank_policies

COLUMN_TITLES = ("Rank", "Policy", "Environment", "Step", "Episodes", "Mean [95 %]", "IQM", "Evaluated")
ALL_ENVIRONMENTS = "All environments"
RANKING_TEXT = (
    "Ranked for each environment by the lower end of the 95 % interval of the mean return: a policy that was tried "
    "more often is surer. The newest evaluation of a checkpoint counts, with all its batches."
)


def _cells(place: LeaderboardEntry) -> list[str | Cell]:
    run_id = place.trained.run_id if place.trained else place.run_id
    return [
        str(place.rank),
        Cell(policy_label(place), place.policy_path, ui.dot_icon(theme.run_color(run_id))),
        place.env_id,
        Cell(format_si_number(place.step), "" if place.step is None else f"{place.step:,}"),
        format_si_number(place.episodes),
        format_interval(place.mean),
        format_si_number(place.iqm),
        Cell(format_ago(place.evaluated_at), format_timestamp(place.evaluated_at)),
    ]


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
        self.env_choice = ui.combo_box("leaderboard.env", [(ALL_ENVIRONMENTS, "")])
        self.env_choice.setMinimumWidth(200)
        self.env_choice.currentIndexChanged.connect(lambda _: self._fill())
        self.evaluation_button = ui.button(
            "Show evaluation",
            "leaderboard.evaluation",
            lambda: self._open_run(is_training=False),
            "The run that evaluated this policy (Return, or a double click)",
        )
        self.training_button = ui.button(
            "Show training",
            "leaderboard.trained",
            lambda: self._open_run(is_training=True),
            "The run that trained this policy",
        )
        head = ui.row(
            ui.heading_label("Leaderboard"),
            theme.GAP,
            self.env_choice,
            ui.Stretch(),
            self.evaluation_button,
            self.training_button,
        )
        self.table = ReadOnlyTable("leaderboard.places", text_columns=(1, 2))
        self.table.setSelectionBehavior(ReadOnlyTable.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(ReadOnlyTable.SelectionMode.SingleSelection)
        self.table.itemSelectionChanged.connect(self._update_buttons)
        self.table.doubleClicked.connect(lambda _: self._open_run(is_training=False))
        start = ui.accent_button(
            "Evaluate a policy", "leaderboard.start", lambda: workbench.page_requested.emit("policy")
        )
        self._stack = ui.stack(
            ui.EmptyState("No policy has been evaluated yet", "Evaluate some, and they are ranked here.", start),
            ui.widget_column(ui.muted_label(RANKING_TEXT), (self.table, 1)),
        )
        ui.column(head, (self._stack, 1), parent=self, margins=ui.PAGE_MARGINS)
        self._fill()
        workbench.bridge.connected.connect(lambda _: self._follow_evaluations())

    # --- what there is

    def _follow_evaluations(self) -> None:
        if self.isVisible():
            self._evaluations.watch_run("")

    def _rank_evaluations(self) -> None:
        evaluations = self._evaluations.evaluations
        self._workbench.bridge.run_in_background(
            lambda: rank_policies(evaluations), self._show_places, self._workbench.show_error, self
        )

    def _show_places(self, places: list[LeaderboardEntry]) -> None:
        self._places = places
        envs = dict.fromkeys(place.env_id for place in places)
        selected = self.env_choice.currentData()
        rows = [(ALL_ENVIRONMENTS, ""), *((env, env) for env in envs)]
        ui.set_choices(self.env_choice, rows, selected if selected in envs else "")
        self._fill()

    def _fill(self) -> None:
        selected = self._selected_place()
        env_id = self.env_choice.currentData()
        self._visible_places = [place for place in self._places if env_id in ("", place.env_id)]
        self._stack.setCurrentIndex(1 if self._places else 0)
        for widget in (self.env_choice, self.evaluation_button, self.training_button):
            widget.setVisible(bool(self._places))
        self.table.show_rows(COLUMN_TITLES, [_cells(place) for place in self._visible_places])
        if selected is not None:
            run_ids = [place.run_id for place in self._visible_places]
            if selected.run_id in run_ids:
                self.table.selectRow(run_ids.index(selected.run_id))
            else:
                self.table.clearSelection()
        self._update_buttons()

    # --- actions

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

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._follow_evaluations()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._evaluations.suspend()
