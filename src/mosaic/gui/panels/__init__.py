"""The tables of pages, tabs and docks. A new pane is a row here and a module beside it."""

from __future__ import annotations

from mosaic.gui.panels.analytics import Analytics
from mosaic.gui.panels.compare import Compare
from mosaic.gui.panels.config import ConfigTab
from mosaic.gui.panels.control import Control
from mosaic.gui.panels.fastlane import FastLane
from mosaic.gui.panels.leaderboard import Leaderboard
from mosaic.gui.panels.log import LogPanel
from mosaic.gui.panels.logs import LogsTab
from mosaic.gui.panels.notes import NotesPanel
from mosaic.gui.panels.overview import Overview
from mosaic.gui.panels.policy import PolicyPage
from mosaic.gui.panels.run_page import RunPage
from mosaic.gui.panels.runs import RunsPanel
from mosaic.gui.panels.settings import SettingsPage
from mosaic.gui.panels.tensorboard import TensorBoardTab
from mosaic.gui.panels.train import TrainPage
from mosaic.gui.panels.trainer import TrainerPage
from mosaic.gui.panels.videos import VideosTab
from mosaic.gui.panels.wandb import WandbTab
from mosaic.gui.panels.welcome import Welcome
from mosaic.gui.tables import Dock, Page, RunTab

RUN_TABS: tuple[RunTab, ...] = (
    RunTab("overview", "Overview", Overview),
    RunTab("fastlane", "FastLane", FastLane),
    RunTab("analytics", "Analytics", Analytics),
    RunTab("tensorboard", "TensorBoard", TensorBoardTab),
    RunTab("wandb", "W&B", WandbTab, when=lambda view: bool(view.get("has_wandb"))),
    RunTab("logs", "Logs", LogsTab),
    RunTab("config", "Config", ConfigTab),
    RunTab("videos", "Videos", VideosTab),
)

PAGES: tuple[Page, ...] = (
    Page("welcome", "Welcome", "mdi6.hand-wave-outline", Welcome, is_listed=False),
    Page("train", "Train", "mdi6.school-outline", TrainPage),
    Page("run", "Runs", "mdi6.format-list-bulleted", lambda workbench: RunPage(workbench, RUN_TABS)),
    Page("compare", "Compare", "mdi6.compare", Compare),
    Page("policy", "Evaluate", "mdi6.folder-open-outline", PolicyPage),
    Page("leaderboard", "Leaderboard", "mdi6.trophy-outline", Leaderboard),
    Page("trainer", "Trainer", "mdi6.server", TrainerPage, is_listed=False),
    Page("settings", "Settings", "mdi6.cog-outline", SettingsPage, is_listed=False),
)

DOCKS: tuple[Dock, ...] = (
    Dock("control", "Control", "left", Control),
    Dock("runs", "Runs", "left", RunsPanel),
    Dock("notes", "Notes", "bottom", NotesPanel),
    Dock("log", "Log", "bottom", LogPanel),
)
