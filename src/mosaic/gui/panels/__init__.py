"""The tables of pages, tabs and docks. A new pane is a row here and a module beside it."""

from __future__ import annotations

from mosaic.gui.panels.run_page import RunPage
from mosaic.gui.tables import Dock, Page, RunTab

RUN_TABS: tuple[RunTab, ...] = ()

PAGES: tuple[Page, ...] = (
    Page("run", "Runs", "mdi6.format-list-bulleted", lambda workbench: RunPage(workbench, RUN_TABS)),
)

DOCKS: tuple[Dock, ...] = ()
