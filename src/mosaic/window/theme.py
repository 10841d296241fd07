"""Every color, margin and font of the window, stated once; and which color each run has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import qtawesome
from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontDatabase,
    QGuiApplication,
    QIcon,
    QIconEngine,
    QPainter,
    QPalette,
    QPixmap,
)
from PySide6.QtWidgets import QApplication
from qtawesome.iconic_font import IconicFont

MAX_SAVED = 1000
"""Runs whose colors are remembered: the newest ones."""


class RunColors:
    """Runs take the colors of a cycle in turn, so that runs submitted one after the other differ."""

    def __init__(self, count: int) -> None:
        self._count = count
        """Of colors."""
        self._numbers: dict[str, int] = {}
        self._next = 0

    def load(self, saved: Any) -> None:
        """Take over what `save` returned, and nothing that is not a color."""
        if isinstance(saved, dict):
            self._numbers |= {
                run_id: number for run_id, number in saved.items() if type(number) is int and 0 <= number < self._count
            }
        if self._numbers:
            self._next = self._numbers[max(self._numbers)] + 1

    def save(self) -> dict[str, int]:
        return {run_id: self._numbers[run_id] for run_id in sorted(self._numbers)[-MAX_SAVED:]}

    def number(self, run_id: str) -> int:
        """The number of a run's color; a run that is not known yet gets the next one."""
        if run_id not in self._numbers:
            self._numbers[run_id] = self._next % self._count
            self._next += 1
        return self._numbers[run_id]

    def assign(self, run_ids: Iterable[str]) -> None:
        """Give colors to those that have none, the oldest first."""
        for run_id in sorted(run_ids):
            self.number(run_id)

    def separate(self, run_ids: Iterable[str]) -> bool:
        """Give runs that are shown together different colors, as far as there are enough. Return whether any changed.

        The first of two runs with the same color keeps it.
        """
        used: set[int] = set()
        repeated = []
        for run_id in run_ids:
            number = self.number(run_id)
            if number in used:
                repeated.append(run_id)
            used.add(number)
        free = [number for number in range(self._count) if number not in used]
        for run_id, number in zip(repeated, free, strict=False):
            self._numbers[run_id] = number
        return bool(repeated and free)


# --- Every color, margin and font of the window, stated once.


GAP = 8
"""Between related things; half of it inside, twice of it between groups."""
MARGIN = 12
"""Inside a panel."""

SMALLEST_PT, DEFAULT_PT, LARGEST_PT = 8.0, 10.0, 16.0
"""The size of plain text."""

RUN_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a800", "#8c8c8c")
"""Okabe and Ito's cycle, which color-blind people can distinguish; without its black, which is invisible on dark."""

FURTHER_RUN_COLORS = ("#7d6be0", "#a5671f", "#e0457b", "#2fb8ac", "#86ad1e", "#b98af0", "#f08f7f", "#5a7fb5")
"""For more than eight runs at a time; these are not as easy to distinguish."""

HUD_TEXT, HUD_SHADE = "#ffffff", "#000000"
"""Over frames, in either theme."""

STATE_ICONS = {
    "queued": ("mdi6.clock-outline", "muted"),
    "starting": ("mdi6.progress-clock", "accent"),
    "running": ("mdi6.play-circle", "accent"),
    "stalled": ("mdi6.timer-alert-outline", "warning"),
    "paused": ("mdi6.pause-circle", "warning"),
    "stopping": ("mdi6.stop-circle-outline", "warning"),
    "succeeded": ("mdi6.check-circle", "good"),
    "ended": ("mdi6.check-circle-outline", "muted"),
    "failed": ("mdi6.close-circle", "bad"),
    "cancelled": ("mdi6.cancel", "muted"),
    "rejected": ("mdi6.alert-circle", "bad"),
    "lost": ("mdi6.help-circle", "bad"),
    "unreadable": ("mdi6.alert", "warning"),
    "waiting": ("mdi6.clock-outline", "muted"),
    "done": ("mdi6.check-circle", "good"),
    "pruned": ("mdi6.content-cut", "muted"),
    "detached": ("mdi6.link-off", "warning"),
}
"""Icon and color of each stage and outcome, of a run that cannot be read completely, and of trials and sweeps; shown
with the word."""


@dataclass(frozen=True)
class Tokens:
    window: str
    surface: str
    raised: str
    line: str
    faint: str
    text: str
    muted: str
    accent: str
    good: str
    warning: str
    bad: str


_COLORS = {
    "window": ("#14161a", "#f5f6f8"),
    "surface": ("#1b1e24", "#ffffff"),
    "raised": ("#242830", "#eef0f4"),
    "line": ("#333a46", "#d5dae2"),
    "faint": ("#262b34", "#e7eaef"),
    "text": ("#e6e9ee", "#1a1f27"),
    "muted": ("#9aa4b2", "#5a6472"),
    "accent": ("#58a6ff", "#0b66d8"),
    "good": ("#3fb950", "#1a7f37"),
    "warning": ("#d9a441", "#9a6700"),
    "bad": ("#f0625a", "#c62b24"),
}
"""By token: its color in the dark and in the light theme."""
DARK, LIGHT = (Tokens(*colors) for colors in zip(*_COLORS.values(), strict=True))

_TILE_COLORS = {
    "floor": ("#2a2f38", "#eceff3"),
    "ice": ("#7fb2d9", "#cfe6f7"),
    "shine": ("#b5d6ee", "#f4fafe"),
    "water": ("#123a5c", "#2f6ea3"),
    "deep": ("#0a2238", "#1c4a72"),
    "grass": ("#2f6b3c", "#bfe3c5"),
    "start": ("#5b5470", "#ddd6ee"),
    "rock": ("#5d4a3c", "#a8886c"),
    "rock_dark": ("#3b2d24", "#76593f"),
    "wall": ("#626c7a", "#8b95a3"),
    "wall_side": ("#d9dee6", "#2c333d"),
    "wall_line": ("#4a535f", "#747e8c"),
    "lava": ("#e0602a", "#f0773d"),
    "lava_light": ("#f7a94a", "#ffc46b"),
    "ink": ("#10131a", "#20242c"),
    "paper": ("#f2f4f7", "#ffffff"),
    "agent": ("#ff7a59", "#d9481f"),
    "taxi": ("#f5c518", "#f2b705"),
    "red": ("#e5534b", "#d1332b"),
    "green": ("#46b859", "#2b9a41"),
    "blue": ("#4c8dff", "#2467d6"),
    "purple": ("#a574e0", "#7d48bf"),
    "yellow": ("#f0c929", "#dba800"),
    "grey": ("#98a2b0", "#7b8593"),
    "cross": ("#58a6ff", "#0b66d8"),
    "circle": ("#e69f00", "#c67c00"),
}
"""Of the tiles of grid worlds and boards, in the dark and in the light theme."""

_SCORE_COLORS = (("#4a63ad", "#2a9a92", "#6ccd5a", "#fde725"), ("#8cc7d8", "#3f97b7", "#3b5ea8", "#3d1f7a"))
"""From the lowest score to the highest, in the dark and in the light theme: the best ones stand out on either."""

run_colors = RunColors(len(RUN_COLORS) + len(FURTHER_RUN_COLORS))
"""Which color each run has."""
_current = LIGHT
_points = DEFAULT_PT


def tokens() -> Tokens:
    """Those of the theme in use."""
    return _current


def is_dark() -> bool:
    return _current is DARK


def tile_color(name: str) -> QColor:
    """A color of the tiles of grid worlds and boards."""
    return QColor(_TILE_COLORS[name][0 if is_dark() else 1])


def score_color(share: float) -> QColor:
    """A color between those of the lowest (0) and of the highest score (1)."""
    stops = [QColor(color) for color in _SCORE_COLORS[0 if is_dark() else 1]]
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    at = min(int(place), len(stops) - 2)
    low, high, rest = stops[at], stops[at + 1], place - at
    parts = zip((low.redF(), low.greenF(), low.blueF()), (high.redF(), high.greenF(), high.blueF()), strict=True)
    return QColor.fromRgbF(*((1 - rest) * one + rest * other for one, other in parts))


def run_color(run_id: str) -> QColor:
    """The same for a run in list, charts, HUD and compare."""
    return QColor((*RUN_COLORS, *FURTHER_RUN_COLORS)[run_colors.number(run_id)])


def terminal_color(name: str) -> str:
    """A color that a program's output asks for, so that it can be read on our background."""
    t = _current
    tokens_of = {"red": t.bad, "green": t.good, "yellow": t.warning, "blue": t.accent, "black": t.muted}
    if name in ("magenta", "cyan"):
        return {"magenta": ("#b0478a", "#d98cb8"), "cyan": ("#00796b", "#4fc3b5")}[name][is_dark()]
    return tokens_of.get(name, t.text)


def apply(app: QApplication, theme_name: str, font_size_pt: float = DEFAULT_PT) -> None:
    """Apply the theme `light`, `dark` or `system`, and the size of plain text."""
    global _current, _points
    _points = font_size_pt
    prefers_dark = QGuiApplication.styleHints().colorScheme() is Qt.ColorScheme.Dark
    _current = DARK if theme_name == "dark" or (theme_name == "system" and prefers_dark) else LIGHT
    app.setStyleSheet("")  # with a style sheet, every change below would restyle all widgets: five times the time
    if app.style().name() != "fusion":
        app.setStyle("Fusion")
    app.setPalette(_palette(_current))
    font = app.font()
    font.setPointSizeF(font_size_pt)
    app.setFont(font)
    app.setStyleSheet(_style_sheet(_current))  # after the font, which widgets take over when they are restyled


@contextmanager
def without_style_sheet(app: QApplication) -> Iterator[None]:
    """For building many widgets: with a style sheet, each is restyled whenever it or a parent of it gets a parent."""
    style_sheet = app.styleSheet()
    app.setStyleSheet("")
    try:
        yield
    finally:
        app.setStyleSheet(style_sheet)


class _ThemeIconEngine(QIconEngine):
    """Draws an icon in the colors of the theme at the time of drawing, so that icons follow a change of the theme."""

    def __init__(self, name: str, token: str) -> None:
        super().__init__()
        self._name = name
        self._token = token

    def clone(self) -> QIconEngine:
        return _ThemeIconEngine(self._name, self._token)

    def paint(self, painter: QPainter, rect: QRect, mode: QIcon.Mode, state: QIcon.State) -> None:
        icon = _colored_icon(self._name, getattr(_current, self._token))
        icon.paint(painter, rect, Qt.AlignmentFlag.AlignCenter, mode, state)

    def pixmap(self, size: QSize, mode: QIcon.Mode, state: QIcon.State) -> QPixmap:
        if size.isEmpty():  # a widget that is being laid out; QtAwesome would paint into nothing
            return QPixmap()
        return _colored_icon(self._name, getattr(_current, self._token)).pixmap(size, 1.0, mode, state)


@lru_cache(maxsize=512)
def _colored_icon(name: str, color: str) -> QIcon:
    icon: QIcon = _icon_font().icon(name, color=color)
    return icon


@lru_cache
def _icon_font() -> IconicFont:
    """Load the one font in use; `qtawesome.icon` would load twelve and take four times as long."""
    return IconicFont(*(font for font in qtawesome._BUNDLED_FONTS if font[0] == "mdi6"))


@lru_cache(maxsize=512)
def icon(name: str, token: str = "text") -> QIcon:
    """An icon by its QtAwesome name, in a token's color."""
    return QIcon(_ThemeIconEngine(name, token))


def state_icon(state: str) -> QIcon:
    return icon(*STATE_ICONS.get(state, ("mdi6.help-circle", "muted")))


def scale(size_px: int) -> int:
    """A size that suits text of the default size, for text of the size in use."""
    return round(size_px * _points / DEFAULT_PT)


def monospace_font() -> QFont:
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    font.setPointSizeF(_points - 0.5)
    return font


def text_font(offset_pt: float = 0.0, is_bold: bool = False) -> QFont:
    """The font of plain text, larger by `offset_pt`."""
    font = QApplication.font()
    font.setPointSizeF(_points + offset_pt)
    if is_bold:
        font.setWeight(QFont.Weight.DemiBold)
    return font


def _palette(t: Tokens) -> QPalette:
    palette = QPalette()
    roles = {
        QPalette.ColorRole.Window: t.window,
        QPalette.ColorRole.WindowText: t.text,
        QPalette.ColorRole.Base: t.surface,
        QPalette.ColorRole.AlternateBase: t.raised,
        QPalette.ColorRole.ToolTipBase: t.raised,
        QPalette.ColorRole.ToolTipText: t.text,
        QPalette.ColorRole.Text: t.text,
        QPalette.ColorRole.Button: t.raised,
        QPalette.ColorRole.ButtonText: t.text,
        QPalette.ColorRole.BrightText: t.bad,
        QPalette.ColorRole.Link: t.accent,
        QPalette.ColorRole.Highlight: t.accent,
        QPalette.ColorRole.HighlightedText: t.window if t is DARK else "#ffffff",
        QPalette.ColorRole.PlaceholderText: t.muted,
        QPalette.ColorRole.Mid: t.line,
        QPalette.ColorRole.Midlight: t.faint,
        QPalette.ColorRole.Dark: t.line,
        QPalette.ColorRole.Shadow: t.line,
        QPalette.ColorRole.Light: t.raised,
    }
    for role, color in roles.items():
        palette.setColor(role, QColor(color))
    for role in (QPalette.ColorRole.WindowText, QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, role, QColor(t.muted))
    return palette


def _svg_url(name: str, t: Tokens) -> str:
    """A style sheet that draws a part of a widget draws its arrow or tick too."""
    path = Path(__file__).with_name("pictures") / f"{name}-{'dark' if t is DARK else 'light'}.svg"
    return f'url("{path.as_posix()}")'


def _style_sheet(t: Tokens) -> str:
    on_accent = t.window if t is DARK else "#ffffff"
    down, up, check = (_svg_url(name, t) for name in ("down", "up", "check"))
    return f"""
    QToolTip, QLabel {{ qproperty-textFormat: PlainText; }} /* also of tool tips and dialogs that Qt makes */
    QToolTip {{ color: {t.text}; background: {t.raised}; border: 1px solid {t.line}; padding: 4px; }}
    QPushButton, QToolButton {{ padding: 4px 12px; border: 1px solid {t.line}; border-radius: 4px;
        background: {t.raised}; }}
    QToolButton {{ padding: 4px; }}
    QToolButton[popupMode="2"] {{ padding-right: 18px; }}
    QToolButton::menu-indicator {{ image: {down}; width: 10px; height: 10px; subcontrol-origin: padding;
        subcontrol-position: right center; right: 4px; }}
    QPushButton:hover, QToolButton:hover, QPushButton:focus, QToolButton:focus {{ border-color: {t.accent}; }}
    QPushButton:pressed, QToolButton:pressed, QToolButton:checked {{ background: {t.faint}; border-color: {t.accent}; }}
    QPushButton:disabled, QToolButton:disabled {{ color: {t.muted}; border-color: {t.faint}; background: {t.window}; }}
    QPushButton[accent="true"] {{ background: {t.accent}; color: {on_accent}; border-color: {t.accent};
        font-weight: 600; }}
    QPushButton[accent="true"]:disabled {{ background: {t.raised}; color: {t.muted}; border-color: {t.faint}; }}
    QToolButton[flat="true"], QPushButton[flat="true"] {{ border-color: transparent; background: transparent; }}
    QToolButton[flat="true"]:hover, QPushButton[flat="true"]:hover {{ background: {t.raised}; }}
    QToolButton[flat="true"]:focus, QPushButton[flat="true"]:focus {{ border-color: {t.accent}; }}
    QPushButton[accent="true"]:focus {{ border-color: {t.text}; }}
    QToolButton[flat="true"]:checked {{ background: {t.raised}; border-color: {t.line}; }}
    QToolButton[filter="true"] {{ padding: 1px 8px; border-radius: 9px; }}
    QToolBar QToolButton[flat="true"]:checked {{ font-weight: 600; }}
    QToolButton[heading="true"]:checked {{ background: transparent; border-color: transparent; }}
    QToolBar {{ background: {t.window}; border: 0; border-bottom: 1px solid {t.line}; spacing: 4px;
        padding: 4px; }}
    #palette {{ border: 1px solid {t.line}; }}
    QLineEdit, QSpinBox, QDoubleSpinBox, QComboBox, QPlainTextEdit, QTextEdit {{
        background: {t.surface}; border: 1px solid {t.line}; border-radius: 4px; padding: 3px 6px; }}
    QLineEdit:focus, QSpinBox:focus, QDoubleSpinBox:focus, QComboBox:focus, QPlainTextEdit:focus {{
        border-color: {t.accent}; }}
    QLineEdit[invalid="true"], QComboBox[invalid="true"] {{ border-color: {t.bad}; }}
    QAbstractSpinBox QLineEdit, QComboBox QLineEdit {{ border: 0; padding: 0 2px; background: transparent; }}
    QAbstractSpinBox QLineEdit {{ padding: 0 6px; }}
    QComboBox::drop-down {{ border: 0; width: 20px; }}
    QComboBox::down-arrow {{ image: {down}; width: 12px; height: 12px; }}
    QAbstractSpinBox::up-button, QAbstractSpinBox::down-button {{ border: 0; width: 18px; background: transparent; }}
    QAbstractSpinBox::up-button:hover, QAbstractSpinBox::down-button:hover {{ background: {t.raised}; }}
    QAbstractSpinBox::up-arrow {{ image: {up}; width: 9px; height: 9px; }}
    QAbstractSpinBox::down-arrow {{ image: {down}; width: 9px; height: 9px; }}
    QCheckBox::indicator, QRadioButton::indicator {{ width: 14px; height: 14px; background: {t.surface};
        border: 1px solid {t.muted}; border-radius: 3px; }}
    QRadioButton::indicator {{ border-radius: 8px; }}
    QCheckBox::indicator:checked {{ background: {t.accent}; border-color: {t.accent}; image: {check}; }}
    QRadioButton::indicator:checked {{ border: 4px solid {t.accent}; width: 8px; height: 8px; }}
    QCheckBox::indicator:focus, QRadioButton::indicator:focus {{ border-color: {t.accent}; }}
    QCheckBox::indicator:disabled, QRadioButton::indicator:disabled {{ border-color: {t.line};
        background: {t.window}; }}
    QCheckBox::indicator:checked:disabled {{ background: {t.muted}; border-color: {t.muted}; }}
    QRadioButton::indicator:checked:disabled {{ border-color: {t.muted}; }}
    QTabWidget::pane {{ border: 0; border-top: 1px solid {t.line}; }}
    QTabBar::tab {{ padding: 6px 12px; border: 0; color: {t.muted}; background: transparent; }}
    QTabBar::tab:selected {{ color: {t.text}; border-bottom: 2px solid {t.accent}; }}
    QTabBar::tab:hover {{ color: {t.text}; }}
    /* With the application's own font, a dock keeps the font of its title, and of its tabs, from before a change. */
    QTabBar {{ font-size: {_points}pt; }}
    QDockWidget {{ font-size: {_points}pt; font-weight: 500; color: {t.muted}; }}
    QDockWidget::title {{ padding: 4px {MARGIN}px; color: {t.muted}; background: {t.window}; }}
    QHeaderView::section {{ padding: 4px 8px; border: 0; border-bottom: 1px solid {t.line}; background: {t.window};
        color: {t.muted}; }}
    QTableView, QTreeView, QListView {{ background: {t.surface}; border: 0; gridline-color: {t.faint};
        selection-background-color: {t.raised}; selection-color: {t.text}; }}
    QListView[bordered="true"] {{ border: 1px solid {t.line}; }}
    QTableWidget::item {{ padding: 0 8px; }}
    QListWidget[roomy="true"]::item {{ padding: 4px 8px; color: {t.text}; }}
    QListWidget[roomy="true"]::item:selected {{ background: {t.raised}; }}
    #palette QTreeWidget::item {{ padding: 0 8px; }}
    #palette QTreeWidget::item:selected {{ background: {t.raised}; }}
    QDialogButtonBox {{ dialogbuttonbox-buttons-have-icons: 0; }}
    QMenuBar {{ background: {t.window}; }}
    QMenuBar::item:selected, QMenu::item:selected {{ background: {t.raised}; color: {t.text}; }}
    QMenu {{ background: {t.surface}; border: 1px solid {t.line}; }}
    QMenu::item:disabled {{ color: {t.muted}; }}
    QMenu::separator {{ height: 1px; margin: 4px 0; background: {t.faint}; }}
    QSplitter::handle {{ background: {t.faint}; }}
    QStatusBar {{ color: {t.muted}; }}
    QProgressBar {{ border: 0; border-radius: 3px; background: {t.raised}; text-align: center; max-height: 14px; }}
    QProgressBar[thin="true"] {{ min-height: 4px; max-height: 4px; border-radius: 2px; }}
    QProgressBar[thin="true"]::chunk {{ border-radius: 2px; }}
    QProgressBar::chunk {{ background: {t.accent}; border-radius: 3px; }}
    QScrollArea {{ border: 0; }}
    QScrollBar {{ background: transparent; border: 0; }}
    QScrollBar:vertical {{ width: 10px; }} QScrollBar:horizontal {{ height: 10px; }}
    QScrollBar::handle {{ background: {t.line}; border-radius: 3px; margin: 2px; }}
    QScrollBar::handle:vertical {{ min-height: 28px; }}
    QScrollBar::handle:horizontal {{ min-width: 28px; }}
    QScrollBar::handle:hover {{ background: {t.muted}; }}
    QScrollBar::add-line, QScrollBar::sub-line {{ width: 0; height: 0; }}
    QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}
    QLabel[title="true"] {{ font-size: {1.5 * (_points + 2)}pt; font-weight: 600; }}
    QLabel[heading="true"] {{ font-size: {_points + 2}pt; font-weight: 600; }}
    QLabel[section="true"] {{ font-weight: 600; }}
    QLabel[monospace="true"] {{ font-family: "{monospace_font().family()}"; font-size: {_points - 0.5}pt; }}
    QLabel[muted="true"] {{ color: {t.muted}; }}
    QLabel[accent="true"] {{ color: {t.accent}; }}
    QLabel[note="true"] {{ font-size: {_points - 1}pt; }}
    QLabel[good="true"] {{ color: {t.good}; }}
    QLabel[warning="true"] {{ color: {t.warning}; }}
    QLabel[error="true"] {{ color: {t.bad}; }}
    QFrame[card="true"] {{ background: {t.surface}; border: 1px solid {t.line}; border-radius: 6px; }}
    QFrame[chip="true"] {{ background: {t.raised}; border: 0; border-radius: 4px; margin: 0 4px 4px 0; }}
    QFrame[banner="true"] {{ background: {t.raised}; border: 1px solid {t.warning}; border-radius: 4px; }}
    """
