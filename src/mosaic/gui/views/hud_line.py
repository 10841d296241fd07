"""The line of text over the frames, and the words in it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter

from mosaic.formatting import format_si_number
from mosaic.gui import theme
from mosaic.gui.models.lanes import FrameCell

SEPARATOR = "   "
PADDING = 10
SHADOW_STEPS = 4
"""Steps in which the shadow fades out, one pixel each."""


def format_hud(cells: Sequence[FrameCell], frame_rate_hz: float, hovered_env: int | None = None) -> str:
    """Return the status of one environment, of the one under the pointer, or the spread of several."""
    seen = [cell for cell in cells if cell.hud]
    if not seen:
        return ""
    one = seen[0] if len(cells) == 1 else next((cell for cell in seen if cell.env == hovered_env), None)
    parts = _format_env(one, len(cells) > 1) if one is not None else _format_envs(seen, len(cells))
    pace = (one or seen[0]).hud.get("pace", "")
    parts.append(f"{frame_rate_hz:.1f} frames/s ({pace})" if pace else f"{frame_rate_hz:.1f} frames/s")
    return SEPARATOR.join(parts)


def _format_env(cell: FrameCell, has_others: bool) -> list[str]:
    hud = cell.hud
    parts = [f"environment {cell.env}"] if has_others or cell.env else []
    return [
        *parts,
        f"episode {hud['episode']:,}",
        f"step {hud['step']:,}",
        f"reward {format_si_number(hud['reward'])}",
        f"return {format_si_number(hud['return'])}",
    ]


def _format_envs(seen: Sequence[FrameCell], count: int) -> list[str]:
    returns = [float(cell.hud["return"]) for cell in seen]
    episodes = [int(cell.hud["episode"]) for cell in seen]
    return [
        f"{count} environments",
        f"episode {_format_range(min(episodes), max(episodes))}",
        f"return {_format_range(min(returns), max(returns))}, mean {format_si_number(sum(returns) / len(returns))}",
    ]


def _format_range(low: float, high: float) -> str:
    return format_si_number(low) if low == high else f"{format_si_number(low)} to {format_si_number(high)}"


# --- drawn


def text_size(text: str, font: QFont, max_width: int) -> QSize:
    width = QFontMetrics(font).horizontalAdvance(text) + 2 * PADDING + 2
    return QSize(min(width, max_width - 2 * SHADOW_STEPS), text_height(font))


def text_height(font: QFont) -> int:
    return QFontMetrics(font).height() + 8


def paint_below(painter: QPainter, text: str, place: QRect) -> None:
    painter.setPen(QColor(theme.tokens().text))
    _paint_line(painter, text, place)


def paint_over(painter: QPainter, text: str, place: QRect) -> None:
    """White text on a soft shadow that is dark enough to be readable on any frame."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    shade = QColor(theme.HUD_SHADE)
    for step in range(SHADOW_STEPS, -1, -1):
        shade.setAlpha(150 if step == 0 else 22)
        painter.setBrush(shade)
        painter.drawRoundedRect(QRectF(place).adjusted(-step, -step, step, step), 6 + step, 6 + step)
    painter.setPen(QColor(theme.HUD_TEXT))
    _paint_line(painter, text, place)
    painter.restore()


def _paint_line(painter: QPainter, text: str, place: QRect) -> None:
    inside = place.adjusted(PADDING, 0, -PADDING, 0)
    shown = QFontMetrics(painter.font()).elidedText(text, Qt.TextElideMode.ElideRight, inside.width())
    painter.drawText(inside, Qt.AlignmentFlag.AlignCenter, shown)


def paint_chip(painter: QPainter, text: str, place: QRect) -> None:
    """A few letters in a corner of a frame."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    shade = QColor(theme.HUD_SHADE)
    shade.setAlpha(170)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(shade)
    painter.drawRoundedRect(place, 4, 4)
    painter.setPen(QColor(theme.HUD_TEXT))
    painter.drawText(place, Qt.AlignmentFlag.AlignCenter, text)
    painter.restore()
