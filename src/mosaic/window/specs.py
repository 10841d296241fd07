"""The types of the tables from which the window is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtWidgets import QWidget

from mosaic.contracts.views import RunView
from mosaic.window.workbench import Workbench

SUBMENU_SEPARATOR = " › "
"""Between a menu and its submenu."""


Choice = tuple[str, Callable[[Workbench], None]]
"""An entry of a submenu: its title and what it does."""


@dataclass(frozen=True)
class Action:
    """An entry of the menus and of the palette, with its keys."""

    id: str
    title: str
    menu: str
    """A menu of the menu bar, or a submenu such as `Run › Export`."""
    run: Callable[[Workbench], None]
    shortcut: str = ""
    icon: str = ""
    is_enabled: Callable[[Workbench], bool] = lambda _: True
    """Whether it can be done now."""
    tip: str = ""
    section: int = 0
    """Rows of one menu with different numbers are separated by a line."""
    plural_title: str = ""
    """The title for several runs, with `{}` for their number."""
    runs: Callable[[Workbench], Sequence[RunView]] = Workbench.target_runs
    """The runs that it would apply to."""
    second_shortcut: str = ""
    """Other keys for the same, as long as the first ones are not changed."""

    reason: Callable[[Workbench], str] = lambda _: ""
    """Why it cannot be done now, for its tooltip; empty: that is plain."""
    subject: Callable[[Workbench], str] = lambda _: ""
    """What it would apply to, added to the title: `Undo: delete 3 runs`."""
    choices: Callable[[Workbench], Sequence[Choice]] | None = None
    """The entries of a submenu, read when it opens; None: it is not a submenu."""

    def title_now(self, workbench: Workbench) -> str:
        if subject := self.subject(workbench):
            return f"{self.title}: {subject}"
        count = len(self.runs(workbench)) if self.plural_title else 0
        return self.plural_title.format(count) if count > 1 else self.title

    def trigger(self, workbench: Workbench) -> None:
        """Do it if it is still possible: the runs may have changed since it was offered."""
        if self.is_enabled(workbench):
            self.run(workbench)

    def tooltip(self, keys: str = "", reason: str = "") -> str:
        """What it does, or the reason why it cannot be done now."""
        return (reason or self.tip or self.title) + (f" ({keys})" if keys else "")


@dataclass(frozen=True)
class Page:
    """A whole view in the middle of the window."""

    id: str
    title: str
    icon: str
    create_widget: Callable[[Workbench], QWidget]
    has_nav_button: bool = True
    """Whether it has a button at the left."""
    position: int = 0
    """Its place among the others."""


@dataclass(frozen=True)
class RunTab:
    """A tab of the run page. Its widget has `show_run(run_id)`; it is called when the tab is shown."""

    id: str
    title: str
    create_widget: Callable[[Workbench], QWidget]
    is_available: Callable[[RunView], bool] = lambda _: True
    """Whether a run (its view) has it."""
    position: int = 0
    """Its place among the others."""


@dataclass(frozen=True)
class Dock:
    """A panel at the window's edge."""

    id: str
    title: str
    area: str
    """left or bottom."""
    create_widget: Callable[[Workbench], QWidget]
    position: int = 0
    """Its place among the others."""
