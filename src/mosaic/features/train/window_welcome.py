"""The welcome page of a new workspace: what MOSAIC is, and three examples to start with a click."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from mosaic.base.run_payloads import build_train_payload, with_seed
from mosaic.contracts.views import RunView
from mosaic.window import widgets as ui
from mosaic.window.form import RunsSubmission, show_submitted_runs
from mosaic.window.widgets import WrappingRow
from mosaic.window.workbench import Workbench


@dataclass(frozen=True)
class Example:
    id: str
    title: str
    description: str
    algo: str
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    """Several: one run each, as a group."""

    def payloads(self) -> list[dict[str, Any]]:
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
        self._buttons: list[QPushButton] = []
        title = ui.PlainLabel("Welcome to MOSAIC")
        title.setProperty("title", True)
        own = ui.button("Set up a run of your own (Ctrl+N)", "welcome.own", lambda: self._open_form(None))
        guide = ui.button("Read the guide (F1)", "welcome.guide", lambda: workbench.dialog_requested.emit("help"))
        inside = ui.widget_column(
            title,
            ui.muted_label(
                "A workbench for reinforcement learning: pick an algorithm and an environment, train, watch it live, "
                "compare.\nRuns belong to a trainer in the background: they continue when this window is closed."
            ),
            16,
            ui.heading_label("Begin with an example"),
            WrappingRow([(self._create_card(example), 1) for example in EXAMPLES], spacing=16),
            16,
            WrappingRow([own, guide, ui.Stretch()]),
            ui.Stretch(),
            margins=(48, 40, 48, 24),
        )
        ui.column(ui.scroll_area(inside), parent=self)

    def _create_card(self, example: Example) -> QFrame:
        card = ui.with_object_name(QFrame(), "card")
        card.setProperty("card", True)
        card.setAccessibleName(example.title)
        title = ui.section_label(example.title)
        title.setWordWrap(True)
        start = ui.button("Train now", f"welcome.train.{example.id}", lambda: self._submit(example))
        start.setProperty("accent", not self._buttons)
        self._buttons.append(start)
        edit = ui.button("Open form", f"welcome.form.{example.id}", lambda: self._open_form(example.payloads()[0]))
        buttons = ui.row(start, edit, ui.Stretch())
        ui.column(
            title, ui.muted_label(example.description), ui.Stretch(), buttons, parent=card, margins=(16, 16, 16, 16)
        )
        return card

    def _open_form(self, payload: dict[str, Any] | None) -> None:
        self._workbench.form_requested.emit(payload)

    def _submit(self, example: Example) -> None:
        self._enable_buttons(False)
        self._workbench.show_message(f"Starting: {example.title}…")
        submit = RunsSubmission(example.payloads())
        self._workbench.bridge.ask(submit, self._on_submitted, self._on_rejected, self, is_repeatable=True)

    def _on_submitted(self, views: list[RunView]) -> None:
        self._enable_buttons(True)
        show_submitted_runs(self._workbench, views)

    def _on_rejected(self, error: Exception) -> None:
        self._enable_buttons(True)
        self._workbench.show_error(error)

    def _enable_buttons(self, is_enabled: bool) -> None:
        for widget in self._buttons:
            widget.setEnabled(is_enabled)
