"""The layout of the main window: saved and restored, inside of the screen, with panels that give way to the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QByteArray, QEvent, QObject, QRect, QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QDockWidget,
    QMainWindow,
    QScrollArea,
    QSizePolicy,
    QStackedWidget,
    QToolBar,
    QToolButton,
    QWidget,
)

from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.views import widgets as ui

FIRST_SIZE = QSize(1600, 960)
"""Of the window without a saved geometry, where the screen is large enough."""
FRAME = QSize(4, 40)
"""The assumed size of the window's frame, until the window manager has drawn it."""
LOW_HEIGHT = 900
"""Below this height, in pixels, the bottom panels are collapsed to a bar, so that the page has their room."""
NARROW_WIDTH = 1200
"""Below this width, in pixels, the panels at the left have `NARROW_PANELS_WIDTH`, so that pages fit next to them."""
NARROW_PANELS_WIDTH = 320
FRAME_DELAY_MS = 250
"""Time after which a window manager has added its frame."""


class PanelsBar(QToolBar):
    """A bar at the bottom of the window with a button for each panel that is collapsed."""

    def __init__(self, docks: Sequence[QDockWidget]) -> None:
        super().__init__("Collapsed panels")
        self.setObjectName("panels")
        self.setMovable(False)
        self.setIconSize(QSize(12, 12))
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
        self.toggleViewAction().setVisible(False)
        self._entries = [(dock, self.addWidget(self._create_button(dock))) for dock in docks]

    def _create_button(self, dock: QDockWidget) -> QToolButton:
        tip = f"Show the panel {dock.windowTitle()}"
        button = ui.tool_button(f"open.{dock.objectName()}", "mdi6.chevron-up", tip, dock.show, dock.windowTitle())
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        return button

    def refresh(self, is_allowed: bool) -> None:
        for dock, action in self._entries:
            action.setVisible(dock.isHidden())
        self.setVisible(is_allowed and any(dock.isHidden() for dock, _ in self._entries))


class WindowLayout(QObject):
    def __init__(
        self, window: QMainWindow, docks: Sequence[QDockWidget], bottom: Sequence[QDockWidget], settings: GuiSettings
    ) -> None:
        """`bottom` are the docks that are collapsed where the window is low."""
        super().__init__(window)
        self._window = window
        self._docks, self._bottom = docks, bottom
        self._settings = settings
        self._is_low: bool | None = None
        self._is_narrow = False
        self._wide_panels_width = 0
        """Width of the panels at the left before the window became narrow."""
        self._collapsed: set[str] = set()
        """Names of docks that are hidden only because the window is low."""
        self._state_before: QByteArray | None = None
        """The state to go back to while a page has all the room."""
        self._saved: tuple[bytes, ...] = ()
        self.panels_bar = PanelsBar(bottom)
        window.addToolBar(Qt.ToolBarArea.BottomToolBarArea, self.panels_bar)
        self._fit_timer = ui.create_timer(self, 0, self._fit_to_screen, is_single_shot=True)
        self._fit_again_timer = ui.create_timer(self, FRAME_DELAY_MS, self._fit_to_screen, is_single_shot=True)
        self._width_timer = ui.create_timer(self, 0, self._adapt_to_width, is_single_shot=True)
        for dock in bottom:
            dock.toggleViewAction().toggled.connect(lambda is_shown, dock=dock: self._on_dock_toggled(dock, is_shown))
        window.installEventFilter(self)

    # --- saving

    def restore(self) -> None:
        geometry, state = self._settings.layout("geometry"), self._settings.layout("window")
        available = self._window.screen().availableGeometry()
        if geometry is None or not self._window.restoreGeometry(geometry):
            self._window.resize(FIRST_SIZE.boundedTo(available.size() - FRAME))
        if state is None or not self._window.restoreState(state):
            # As low as they may be.
            self._window.resizeDocks(list(self._bottom), [1] * len(self._bottom), Qt.Orientation.Vertical)
        else:
            self._is_narrow = self._window.width() < NARROW_WIDTH  # the width of the panels was saved, too
        saved = self._settings.get_for_workspace("panels", {})
        if isinstance(saved, dict) and isinstance(saved.get("collapsed"), list):
            self._is_low = bool(saved.get("is_low"))
            self._collapsed = {name for name in saved["collapsed"] if isinstance(name, str)}
        self._adapt_to_height()

    def save(self, selection: str | None) -> None:
        """Save the layout and the selected run if one of them has changed."""
        geometry = self._window.saveGeometry()
        state = self._state_before or self._window.saveState()
        panels: dict[str, Any] = {"is_low": bool(self._is_low), "collapsed": sorted(self._collapsed)}
        now = (bytes(geometry.data()), bytes(state.data()), str(selection).encode(), str(panels).encode())
        if now == self._saved:
            return
        self._saved = now
        self._settings.put_layout("geometry", geometry)
        self._settings.put_layout("window", state)
        self._settings.put_for_workspace("panels", panels)
        self._settings.put_for_workspace("selection", selection)
        self._settings.flush()

    # --- inside of the screen

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Resize:
            self._adapt_to_height()
            self._width_timer.start()
        elif event.type() is QEvent.Type.Show:
            self._fit_timer.start()
            self._fit_again_timer.start()
            if (handle := self._window.windowHandle()) is not None:
                # The screen that the window was on may be gone, or another one may be smaller.
                handle.screenChanged.connect(self._fit_timer.start, Qt.ConnectionType.UniqueConnection)
        return False

    def _fit_to_screen(self) -> None:
        window = self._window
        if window.isMaximized() or window.isFullScreen() or window.isHidden():
            return
        frame = window.frameGeometry()
        wanted = fit_rect(frame, window.screen().availableGeometry())
        if wanted.size() != frame.size():
            window.resize(window.size() - (frame.size() - wanted.size()))
        if wanted.topLeft() != frame.topLeft():
            window.move(wanted.topLeft())

    # --- room for the page

    def _adapt_to_height(self) -> None:
        """Collapse the bottom panels when the window becomes low, and bring them back when it becomes high."""
        is_low = self._window.height() < LOW_HEIGHT
        if is_low != self._is_low and self._state_before is None:
            self._is_low = is_low
            for dock in self._bottom:
                name = dock.objectName()
                if is_low and not dock.isHidden():
                    dock.hide()
                    self._collapsed.add(name)
                elif not is_low and name in self._collapsed:
                    dock.show()
        self.panels_bar.refresh(self._state_before is None)

    def _adapt_to_width(self) -> None:
        """Make the panels at the left narrower when the window becomes narrow, and wider again when it becomes wide."""
        is_narrow = self._window.width() < NARROW_WIDTH
        left = [dock for dock in self._docks if dock not in self._bottom and dock.isVisible()]
        if is_narrow == self._is_narrow or not left:
            return
        self._is_narrow = is_narrow
        if is_narrow:
            self._wide_panels_width = left[0].width()
        width = min(NARROW_PANELS_WIDTH, self._wide_panels_width) if is_narrow else self._wide_panels_width
        if width:
            self._window.resizeDocks(left, [width] * len(left), Qt.Orientation.Horizontal)

    def _on_dock_toggled(self, dock: QDockWidget, is_shown: bool) -> None:
        if is_shown:
            self._collapsed.discard(dock.objectName())
        self.panels_bar.refresh(self._state_before is None)

    @property
    def has_full_page(self) -> bool:
        return self._state_before is not None

    def set_full_page(self, is_full: bool) -> None:
        """Hide all panels, so that the page has their room; or show those again that were shown."""
        if is_full == self.has_full_page:
            return
        collapsed = set(self._collapsed)
        if is_full:
            self._state_before = self._window.saveState()
            for dock in self._docks:
                dock.hide()
        elif self._state_before is not None:
            state, self._state_before = self._state_before, None
            self._window.restoreState(state)
        self._collapsed = collapsed
        self._adapt_to_height()


def fit_rect(frame: QRect, available: QRect) -> QRect:
    """The nearest rectangle that is inside of `available`, smaller only where it has to be."""
    size = frame.size().boundedTo(available.size())
    left = max(available.left(), min(frame.left(), available.right() + 1 - size.width()))
    top = max(available.top(), min(frame.top(), available.bottom() + 1 - size.height()))
    return QRect(left, top, size.width(), size.height())


class _CurrentPage(QWidget):
    """Needs as much room as the page that is shown: a stack with wrapped text needs as much as the highest of all."""

    def __init__(self, pages: QStackedWidget) -> None:
        super().__init__()
        self._pages = pages
        pages.setParent(self)
        pages.currentChanged.connect(lambda _: self.updateGeometry())

    def minimumSizeHint(self) -> QSize:
        smallest, page = self._pages.minimumSizeHint(), self._pages.currentWidget()
        if page is None or not page.hasHeightForWidth():
            return smallest
        return smallest.expandedTo(QSize(0, page.heightForWidth(max(self.width(), smallest.width()))))

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:
            self.updateGeometry()
        return super().event(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._pages.resize(event.size())
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()
        super().resizeEvent(event)


class PageArea(QScrollArea):
    """Scrolls a page that needs more room than there is; otherwise the page is as large as the area."""

    def __init__(self, pages: QStackedWidget) -> None:
        super().__init__()
        self.setObjectName("page.area")
        self.setWidgetResizable(True)
        self.setWidget(_CurrentPage(pages))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
