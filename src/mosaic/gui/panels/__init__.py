"""The tables of pages, tabs and docks. A new panel is a row here and a module next to it."""

from __future__ import annotations

from mosaic.gui.panels.analytics_panel import AnalyticsTab
from mosaic.gui.panels.compare_panel import ComparePage
from mosaic.gui.panels.config_panel import ConfigTab
from mosaic.gui.panels.docks import ControlPanel, LogPanel, NotesPanel
from mosaic.gui.panels.experiments_panel import ExperimentsPage
from mosaic.gui.panels.fastlane_panel import FastLaneTab
from mosaic.gui.panels.leaderboard_panel import LeaderboardPage
from mosaic.gui.panels.logs_panel import LogsTab
from mosaic.gui.panels.overview import OverviewTab
from mosaic.gui.panels.play_panel import PlayPage
from mosaic.gui.panels.policy_panel import PolicyPage
from mosaic.gui.panels.run_page import RunPage
from mosaic.gui.panels.runs_panel import RunsPanel
from mosaic.gui.panels.settings_panel import SettingsPage
from mosaic.gui.panels.sweeps_panel import SweepsPage
from mosaic.gui.panels.tensorboard_panel import TensorBoardTab
from mosaic.gui.panels.train_panel import TrainPage
from mosaic.gui.panels.trainer_panel import TrainerPage
from mosaic.gui.panels.trash_page import TrashPage
from mosaic.gui.panels.videos import VideosTab
from mosaic.gui.panels.wandb_panel import WandbTab
from mosaic.gui.panels.welcome import WelcomePage
from mosaic.gui.ui_specs import Dock, Page, RunTab
from mosaic.gui.views.replay_view import ReplayView

RUN_TABS: tuple[RunTab, ...] = (
    RunTab("overview", "Overview", OverviewTab),
    RunTab("fastlane", "FastLane", FastLaneTab),
    RunTab("analytics", "Analytics", AnalyticsTab),
    RunTab("tensorboard", "TensorBoard", TensorBoardTab),
    RunTab("wandb", "W&B", WandbTab, is_available=lambda view: bool(view.has_wandb)),
    RunTab("logs", "Logs", LogsTab),
    RunTab("config", "Config", ConfigTab),
    RunTab("videos", "Videos", VideosTab),
    RunTab("replay", "Replay", ReplayView, is_available=lambda view: view.has_recording),
)

PAGES: tuple[Page, ...] = (
    Page("welcome", "Welcome", "mdi6.hand-wave-outline", WelcomePage, has_nav_button=False),
    Page("train", "Train", "mdi6.school-outline", TrainPage),
    Page("run", "Runs", "mdi6.format-list-bulleted", lambda workbench: RunPage(workbench, RUN_TABS)),
    Page("compare", "Compare", "mdi6.compare", ComparePage),
    Page("experiments", "Experiments", "mdi6.flask-outline", ExperimentsPage),
    Page("sweeps", "Sweeps", "mdi6.tune-vertical", SweepsPage),
    Page("policy", "Evaluate", "mdi6.folder-open-outline", PolicyPage),
    Page("play", "Play", "mdi6.gamepad-variant-outline", PlayPage),
    Page("leaderboard", "Leaderboard", "mdi6.trophy-outline", LeaderboardPage),
    Page("trainer", "Trainer", "mdi6.server", TrainerPage, has_nav_button=False),
    Page("trash", "Trash", "mdi6.trash-can-outline", TrashPage, has_nav_button=False),
    Page("settings", "Settings", "mdi6.cog-outline", SettingsPage, has_nav_button=False),
)

DOCKS: tuple[Dock, ...] = (
    Dock("control", "Control", "left", ControlPanel),
    Dock("runs", "Runs", "left", RunsPanel),
    Dock("notes", "Notes", "bottom", NotesPanel),
    Dock("log", "Log", "bottom", LogPanel),
)
