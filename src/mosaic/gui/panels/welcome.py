"""Where a new workspace begins: what this is, and three runs to start with a click."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

from mosaic.client import TrainerClient
from mosaic.gui import theme
from mosaic.gui.views.widgets import accent_button, muted_label, with_object_name
from mosaic.gui.workbench import Json, Workbench
from mosaic.submission.run_payloads import build_train_payload, with_seed

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView


@dataclass(frozen=True)
class Example:
    id: str
    title: str
    description: str
    algo: str
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    """Several: one run each, as a group."""

    def payloads(self) -> list[Json]:
        payload = build_train_payload("cleanrl", self.algo, {**self.settings, "tags": ("example",)}, {})
        return [with_seed(payload, seed, f"example-{self.id}") for seed in self.seeds] or [payload]


EXAMPLES = (
    Example(
        "cartpole",
        "PPO balances a pole",
        "CartPole-v1, 200,000 steps. The place to begin: a return of 500 is perfect.",
        "ppo",
        {"env_id": "CartPole-v1", "total_timesteps": 200_000, "seed": 1},
    ),
    Example(
        "pendulum",
        "Continuous actions",
        "PPO swings up Pendulum-v1 with a motor instead of buttons, 200,000 steps.",
        "ppo_continuous_action",
        {"env_id": "Pendulum-v1", "total_timesteps": 200_000, "seed": 1},
    ),
    Example(
        "acrobot",
        "Three seeds of one experiment",
        "PPO on Acrobot-v1 with seeds 1 to 3, as a group: how much of a result is luck?",
        "ppo",
        {"env_id": "Acrobot-v1", "total_timesteps": 150_000},
        (1, 2, 3),
    ),
)


class WelcomePage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(48, 40, 48, 24)
        column.setSpacing(theme.GAP)
        title = QLabel("Welcome to MOSAIC")
        self._title = title
        column.addWidget(title)
        words = muted_label(
            "A workbench for reinforcement learning: pick an algorithm and an environment, train, watch it live, "
            "compare.\nRuns belong to a trainer in the background: closing this window touches none of them."
        )
        column.addWidget(words)
        column.addSpacing(16)
        self._heading = QLabel("Begin with an example")
        column.addWidget(self._heading)
        row = QHBoxLayout()
        row.setSpacing(16)
        self._buttons: list[QPushButton] = []
        for example in EXAMPLES:
            row.addWidget(self._create_card(example), 1)
        column.addLayout(row)
        column.addSpacing(16)
        others = QHBoxLayout()
        own = with_object_name(QPushButton("Set up a run of your own (Ctrl+N)"), "welcome.own")
        own.clicked.connect(lambda: self._open_form(None))
        others.addWidget(own)
        guide = with_object_name(QPushButton("Read the guide (F1)"), "welcome.guide")
        guide.clicked.connect(lambda: workbench.dialog_requested.emit("help"))
        others.addWidget(guide)
        others.addStretch(1)
        column.addLayout(others)
        column.addStretch(1)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setWidget(inside)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll)
        workbench.theme_changed.connect(self._set_fonts)
        self._set_fonts()

    def _set_fonts(self) -> None:
        large = theme.heading_font()
        large.setPointSizeF(large.pointSizeF() * 1.5)
        self._title.setFont(large)
        self._heading.setFont(theme.heading_font())

    def _create_card(self, example: Example) -> QFrame:
        card = with_object_name(QFrame(), "card")
        card.setProperty("card", True)
        column = QVBoxLayout(card)
        column.setContentsMargins(16, 16, 16, 16)
        column.setSpacing(theme.GAP)
        title = QLabel(f"<b>{example.title}</b>")
        title.setWordWrap(True)
        column.addWidget(title)
        column.addWidget(muted_label(example.description))
        column.addStretch(1)
        row = QHBoxLayout()
        make = accent_button if not self._buttons else QPushButton
        start = with_object_name(make("Train now"), f"welcome.train.{example.id}")
        start.clicked.connect(lambda: self._submit(example))
        self._buttons.append(start)
        look = with_object_name(QPushButton("Open form"), f"welcome.form.{example.id}")
        look.clicked.connect(lambda: self._open_form(example.payloads()[0]))
        row.addWidget(start)
        row.addWidget(look)
        row.addStretch(1)
        column.addLayout(row)
        card.setAccessibleName(example.title)
        card.setMinimumWidth(220)
        return card

    def _open_form(self, payload: Json | None) -> None:
        self._workbench.form_requested.emit(payload)

    def _submit(self, example: Example) -> None:
        def submit(trainer: TrainerClient) -> list[RunView]:
            return [trainer.submit(payload) for payload in example.payloads()]

        for button in self._buttons:
            button.setEnabled(False)
        self._workbench.show_message(f"Starting: {example.title}…")
        self._workbench.bridge.ask(submit, self._on_submitted, self._on_rejected, self)

    def _on_submitted(self, views: list[RunView]) -> None:
        self._enable_buttons()
        self._workbench.runs.update(views)
        many = "The run is" if len(views) == 1 else f"{len(views)} runs are"
        self._workbench.show_message(f"{many} in the queue and will start as soon as there is room.", "good")
        self._workbench.select(views[0].run_id)

    def _on_rejected(self, error: Exception) -> None:
        self._enable_buttons()
        self._workbench.show_error(error)

    def _enable_buttons(self) -> None:
        for button in self._buttons:
            button.setEnabled(True)
