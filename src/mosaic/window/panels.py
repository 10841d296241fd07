"""The tables of pages, tabs and docks: the window's own, and those that the features state in their `window`."""

from __future__ import annotations

from typing import Any

from mosaic.base.features import feature_modules
from mosaic.window.settings_page import SettingsPage
from mosaic.window.shell import ControlPanel, LogPanel, NotesPanel
from mosaic.window.specs import Dock, Page, RunTab


def _rows(table: str, *own: Any) -> tuple[Any, ...]:
    rows = [*own, *(row for module in feature_modules("window") for row in getattr(module, table, ()))]
    return tuple(sorted(rows, key=lambda row: row.position))


PAGES: tuple[Page, ...] = _rows(
    "PAGES", Page("settings", "Settings", "mdi6.cog-outline", SettingsPage, has_nav_button=False, position=12)
)
RUN_TABS: tuple[RunTab, ...] = _rows(
    "RUN_TABS",
)
DOCKS: tuple[Dock, ...] = _rows(
    "DOCKS",
    Dock("control", "Control", "left", ControlPanel, position=1),
    Dock("notes", "Notes", "bottom", NotesPanel, position=3),
    Dock("log", "Log", "bottom", LogPanel, position=4),
)
