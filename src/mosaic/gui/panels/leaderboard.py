"""All evaluated policies of the workspace, the better and the surer ones first."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from mosaic.client.leaderboard import Place, ranked
from mosaic.gui import theme
from mosaic.gui.models.evaluation import Evaluations
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.made import accent_button, muted, named
from mosaic.gui.views.read_table import ReadTable, interval_words
from mosaic.gui.views.run_chips import dot_icon
from mosaic.gui.views.words import ago, moment, number, short_id
from mosaic.gui.workbench import Workbench

HEADS = ("Rank", "Policy", "Environment", "Step", "Episodes", "Mean [95 %]", "IQM", "Evaluated")
ALL = "All environments"
WORDS = (
    "Ranked for each environment by the lower end of the 95 % interval of the mean return: a policy that was tried "
    "more often is surer. The newest evaluation of a checkpoint counts, with all its batches."
)


class PlacesTable(ReadTable):
    words = (1, 2)

    def __init__(self) -> None:
        super().__init__("leaderboard.places")
        self.setSelectionBehavior(ReadTable.SelectionBehavior.SelectRows)
        self.setSelectionMode(ReadTable.SelectionMode.SingleSelection)

    def fill(self, places: list[Place]) -> None:
        self.begin(len(places), HEADS)
        for row, place in enumerate(places):
            self.put(row, 0, str(place.rank))
            self.put(row, 1, policy_words(place), place.policy_path).setIcon(
                dot_icon(theme.run_colour(place.trained["run_id"] if place.trained else place.run_id))
            )
            self.put(row, 2, place.env_id)
            self.put(row, 3, number(place.step), "" if place.step is None else f"{place.step:,}")
            self.put(row, 4, number(place.episodes))
            self.put(row, 5, interval_words(place.mean))
            self.put(row, 6, number(place.iqm))
            self.put(row, 7, ago(place.evaluated_at), moment(place.evaluated_at))


def policy_words(place: Place) -> str:
    """`ppo · seed 1 · ABC123`; a policy of no run here is told of by its file."""
    parts = [place.algo if place.is_deterministic else f"{place.algo} (stochastic)"]
    if place.trained is None:
        parts.append(place.file)
    else:
        seed = place.trained.get("seed")
        parts += ([] if seed is None else [f"seed {seed}"]) + [short_id(place.trained["run_id"])]
    return " · ".join(parts)


class Leaderboard(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._places: list[Place] = []
        self._shown: list[Place] = []
        self._found = Evaluations(workbench.bridge, self)
        self._found.changed.connect(self._take)
        self._build()
        workbench.bridge.connected.connect(lambda _: self._follow())
        workbench.theme_changed.connect(self._fill)

    def _build(self) -> None:
        heading = QLabel("Leaderboard")
        heading.setFont(theme.heading())
        self.env = named(QComboBox(), "leaderboard.env")
        self.env.setMinimumWidth(200)
        self.env.addItem(ALL, "")
        self.env.currentIndexChanged.connect(lambda _: self._fill())
        self.evaluation = named(QPushButton("Show evaluation"), "leaderboard.evaluation")
        self.evaluation.setToolTip("The run that evaluated this policy (Return, or a double click)")
        self.evaluation.clicked.connect(lambda: self._open(is_trained=False))
        self.trained = named(QPushButton("Show training"), "leaderboard.trained")
        self.trained.setToolTip("The run that this policy is of")
        self.trained.clicked.connect(lambda: self._open(is_trained=True))
        head = QHBoxLayout()
        head.setSpacing(theme.GAP)
        head.addWidget(heading)
        head.addSpacing(theme.GAP)
        head.addWidget(self.env)
        head.addStretch(1)
        head.addWidget(self.evaluation)
        head.addWidget(self.trained)
        self.table = PlacesTable()
        self.table.itemSelectionChanged.connect(self._offer)
        self.table.doubleClicked.connect(lambda _: self._open(is_trained=False))
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP)
        column.addWidget(muted(WORDS))
        column.addWidget(self.table, 1)
        button = accent_button("Evaluate a policy", "leaderboard.start")
        button.clicked.connect(lambda: self._workbench.page_wanted.emit("policy"))
        empty = Empty("No policy has been evaluated yet", "Evaluate some, and they are ranked here.", button)
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

    def _follow(self) -> None:
        if self.isVisible():
            self._found.follow("")

    def _take(self) -> None:
        found = self._found.found
        self._workbench.bridge.work(lambda: ranked(found), self._show, self._workbench.tell_error, self)

    def _show(self, places: list[Place]) -> None:
        self._places = places
        envs = list(dict.fromkeys(place.env_id for place in places))
        chosen = self.env.currentData()
        self.env.blockSignals(True)
        self.env.clear()
        self.env.addItem(ALL, "")
        for env in envs:
            self.env.addItem(env, env)
        self.env.setCurrentIndex(max(0, self.env.findData(chosen)))
        self.env.blockSignals(False)
        self._fill()

    def _fill(self) -> None:
        chosen = self._selected()
        wanted = self.env.currentData()
        self._shown = [place for place in self._places if wanted in ("", place.env_id)]
        self._stack.setCurrentIndex(1 if self._places else 0)
        self.env.setVisible(bool(self._places))
        for button in (self.evaluation, self.trained):
            button.setVisible(bool(self._places))
        self.table.fill(self._shown)
        if chosen is not None:
            again = [row for row, place in enumerate(self._shown) if place.run_id == chosen.run_id]
            self.table.selectRow(again[0]) if again else self.table.clearSelection()
        self._offer()

    # --- going on

    def _selected(self) -> Place | None:
        rows = self.table.selectionModel().selectedRows()
        return self._shown[rows[0].row()] if rows and rows[0].row() < len(self._shown) else None

    def _offer(self) -> None:
        place = self._selected()
        self.evaluation.setEnabled(place is not None)
        self.trained.setEnabled(place is not None and place.trained is not None)

    def _open(self, is_trained: bool) -> None:
        place = self._selected()
        if place is not None:
            run_id = place.trained["run_id"] if is_trained and place.trained else place.run_id
            self._workbench.select(run_id, "overview")

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._open(is_trained=False)
        else:
            super().keyPressEvent(event)

    # --- being looked at

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._follow()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._found.rest()
