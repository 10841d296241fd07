"""The table of actions: menu, palette and keys are made from it."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication

from mosaic.gui import theme
from mosaic.gui.models.policy_form import policy_workers
from mosaic.gui.panels.train_panel import train_now
from mosaic.gui.run_actions import RUN_ACTIONS
from mosaic.gui.ui_specs import Action
from mosaic.gui.workbench import Workbench


def _switch_theme(workbench: Workbench) -> None:
    workbench.settings.put("theme", "light" if theme.is_dark() else "dark")
    workbench.apply_theme()


ACTIONS: tuple[Action, ...] = (
    Action(
        "agent.configure",
        "Configure Agent…",
        "Run",
        lambda workbench: workbench.form_requested.emit(None),
        "Ctrl+N",
        "mdi6.tune-variant",
        tip="Choose what to train",
    ),
    Action(
        "agent.train",
        "Train Agent",
        "Run",
        train_now,
        "Ctrl+Shift+Return",
        "mdi6.play",
        tip="Submit the last configuration at once",
    ),
    Action(
        "agent.policy",
        "Load Trained Policy…",
        "Run",
        lambda workbench: workbench.page_requested.emit("policy"),
        "Ctrl+L",
        "mdi6.folder-open-outline",
        lambda _: bool(policy_workers()),
        "Evaluate what was trained",
    ),
    Action(
        "app.settings",
        "Settings",
        "File",
        lambda workbench: workbench.page_requested.emit("settings"),
        "Ctrl+,",
        "mdi6.cog-outline",
        tip="Theme, size of the text, shortcuts",
    ),
    Action(
        "app.quit",
        "Quit",
        "File",
        lambda _: QApplication.closeAllWindows(),
        "Ctrl+Q",
        "mdi6.exit-to-app",
        tip="Close the workbench; runs continue",
    ),
    *RUN_ACTIONS,
    Action(
        "view.theme", "Switch between light and dark", "View", _switch_theme, "Ctrl+Shift+L", "mdi6.theme-light-dark"
    ),
    Action(
        "app.palette",
        "Command palette",
        "Tools",
        lambda workbench: workbench.dialog_requested.emit("palette"),
        "Ctrl+K",
        "mdi6.magnify",
        tip="Find any action or run by typing",
    ),
    Action(
        "app.trainer",
        "Trainer",
        "Tools",
        lambda workbench: workbench.page_requested.emit("trainer"),
        "Ctrl+Shift+T",
        "mdi6.server",
        tip="The daemon, its queue and its log",
    ),
    Action(
        "help.help",
        "Help",
        "Help",
        lambda workbench: workbench.dialog_requested.emit("help"),
        "F1",
        "mdi6.help-circle-outline",
        tip="Help for what is in focus, or the guide",
    ),
    Action(
        "help.shortcuts",
        "Keyboard shortcuts",
        "Help",
        lambda workbench: workbench.dialog_requested.emit("shortcuts"),
        "Ctrl+/",
        "mdi6.keyboard-outline",
    ),
    Action(
        "help.welcome",
        "Welcome page",
        "Help",
        lambda workbench: workbench.page_requested.emit("welcome"),
        icon="mdi6.hand-wave-outline",
    ),
    Action(
        "help.about",
        "About MOSAIC",
        "Help",
        lambda workbench: workbench.dialog_requested.emit("about"),
        icon="mdi6.information-outline",
    ),
)
