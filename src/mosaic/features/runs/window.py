"""The window's parts of runs."""

from __future__ import annotations

from mosaic.features.runs.window_analytics import AnalyticsTab
from mosaic.features.runs.window_config import ConfigTab
from mosaic.features.runs.window_list import RunsPanel
from mosaic.features.runs.window_logs import LogsTab
from mosaic.features.runs.window_page import OverviewTab, RunPage
from mosaic.features.runs.window_videos import VideosTab
from mosaic.window.specs import Dock, Page, RunTab
from mosaic.window.workbench import Workbench

RUN_TABS = (
    RunTab("overview", "Overview", OverviewTab, position=1),
    RunTab("analytics", "Analytics", AnalyticsTab, position=3),
    RunTab("logs", "Logs", LogsTab, position=6),
    RunTab("config", "Config", ConfigTab, position=7),
    RunTab("videos", "Videos", VideosTab, position=8),
)


def _create_run_page(workbench: Workbench) -> RunPage:
    from mosaic.window.panels import RUN_TABS  # made of the rows of all features, these included

    return RunPage(workbench, RUN_TABS)


PAGES = (Page("run", "Runs", "mdi6.format-list-bulleted", _create_run_page, position=3),)

DOCKS = (Dock("runs", "Runs", "left", RunsPanel, position=2),)
