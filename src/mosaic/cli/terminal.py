"""Draws images in a terminal: half blocks anywhere, real pixels where the terminal supports them."""

from __future__ import annotations

import base64
import fcntl
import math
import os
import re
import select
import shutil
import struct
import sys
import termios
import time
import tty
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mosaic.contracts.printable import make_printable

Image = npt.NDArray[np.uint8]
_ESC = "\x1b"
_ENTER_SEQUENCE = "\x1b[?1049h\x1b[?25l\x1b[2J"
_EXIT_SEQUENCE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_KITTY_QUERY = "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\"
_ATTRIBUTES_QUERY = "\x1b[c"
REPLY_TIMEOUT_S = 0.3
DEFAULT_CELL_SIZE_PX = (8, 16)
"""Width and height of a character in pixels, where the terminal does not report it."""
MAX_IMAGE_SIDE_PX = 640


class DrawArea(NamedTuple):
    """Characters available to an image, and the size of one in pixels."""

    columns: int
    lines: int
    cell_size_px: tuple[int, int] = DEFAULT_CELL_SIZE_PX

    @property
    def size_px(self) -> tuple[int, int]:
        return self.columns * self.cell_size_px[0], self.lines * self.cell_size_px[1]

    def center(self, columns: int, lines: int) -> tuple[int, int]:
        """The line and column, from 1, at which a centered image begins."""
        return (self.lines - lines) // 2 + 1, (self.columns - columns) // 2 + 1


class ImageRenderer:
    """Writes images as pixels; the base of the renderers for each kind of terminal."""

    def max_image_size(self, area: DrawArea) -> tuple[int, int]:
        """Width and height of the largest image that fits."""
        width, height = area.size_px
        scale = min(1.0, MAX_IMAGE_SIDE_PX / max(width, height))
        return int(width * scale), int(height * scale)

    def render(self, image: Image, area: DrawArea) -> str:
        """What to write so that the image appears in the center of the area."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the screen was cleared."""


class HalfBlockRenderer(ImageRenderer):
    """Two pixels per character: its color and its background. Lines that have not changed are not written again."""

    def __init__(self) -> None:
        self._drawn_lines: dict[int, bytes] = {}

    def max_image_size(self, area: DrawArea) -> tuple[int, int]:
        return area.columns, 2 * area.lines

    def render(self, image: Image, area: DrawArea) -> str:
        lines, columns = image.shape[0] // 2, image.shape[1]
        top, left = area.center(columns, lines)
        written = []
        for line in range(lines):
            pair = np.ascontiguousarray(image[2 * line : 2 * line + 2])
            data = pair.tobytes() + bytes((left % 256,))
            if self._drawn_lines.get(top + line) != data:
                self._drawn_lines[top + line] = data
                written.append(f"{_ESC}[{top + line};{left}H{encode_half_blocks(pair)}")
        return "".join(written)

    def reset(self) -> None:
        self._drawn_lines.clear()


def encode_half_blocks(pixel_rows: Image) -> str:
    """One line of text for two rows of pixels."""
    written = []
    last = None
    for upper, lower in zip(pixel_rows[0].tolist(), pixel_rows[1].tolist(), strict=True):
        colors = (*upper, *lower)
        if colors != last:
            written.append("{}[38;2;{};{};{};48;2;{};{};{}m".format(_ESC, *colors))
            last = colors
        written.append("▀")
    return "".join(written) + f"{_ESC}[0m"


class KittyRenderer(ImageRenderer):
    """Kitty's graphics protocol: the terminal scales. The same image is replaced by the next one."""

    def render(self, image: Image, area: DrawArea) -> str:
        height, width = image.shape[:2]
        scale = min(area.size_px[0] / width, area.size_px[1] / height)
        columns = max(1, int(width * scale / area.cell_size_px[0]))
        lines = max(1, int(height * scale / area.cell_size_px[1]))
        data = base64.b64encode(zlib.compress(np.ascontiguousarray(image).tobytes(), 1)).decode()
        first_keys = f"a=T,q=2,i=1,p=1,C=1,f=24,o=z,s={width},v={height},c={columns},r={lines},"
        parts = [data[at : at + 4096] for at in range(0, len(data), 4096)] or [""]
        written = ["{}[{};{}H".format(_ESC, *area.center(columns, lines))]
        for number, part in enumerate(parts):
            keys = first_keys if number == 0 else ""
            written.append(f"{_ESC}_G{keys}m={int(number < len(parts) - 1)};{part}{_ESC}\\")
        return "".join(written)


class SixelRenderer(ImageRenderer):
    """Six rows of pixels per character, at most 216 colors."""

    def max_image_size(self, area: DrawArea) -> tuple[int, int]:
        return area.size_px[0], area.size_px[1] // 6 * 6

    def render(self, image: Image, area: DrawArea) -> str:
        lines, columns = (math.ceil(image.shape[axis] / area.cell_size_px[1 - axis]) for axis in (0, 1))
        top, left = area.center(columns, lines)
        return f"{_ESC}[{max(1, top)};{max(1, left)}H{encode_sixels(image)}"


def encode_sixels(image: Image) -> str:
    """An image in sixel encoding."""
    height, width = image.shape[:2]
    levels = (np.asarray(image[:, :, :3], np.uint16) * 5 + 127) // 255
    colors = (levels[:, :, 0] * 36 + levels[:, :, 1] * 6 + levels[:, :, 2]).astype(np.uint8)
    written = [f'{_ESC}P0;1q"1;1;{width};{height}']
    written += [f"#{c};2;{c // 36 * 20};{c // 6 % 6 * 20};{c % 6 * 20}" for c in np.unique(colors).tolist()]
    for top in range(0, height, 6):
        band = colors[top : top + 6]
        weights = (1 << np.arange(len(band), dtype=np.uint8))[:, None]
        lines = []
        for color in np.unique(band).tolist():
            sixels = (((band == color) * weights).sum(0, dtype=np.uint8) + 63).tobytes().decode("ascii")
            lines.append(f"#{color}" + _REPEATED_PATTERN.sub(lambda run: f"!{len(run[0])}{run[0][0]}", sixels))
        written.append("$".join(lines) + "-")
    return "".join(written) + f"{_ESC}\\"


_REPEATED_PATTERN = re.compile(r"(.)\1{3,}", re.DOTALL)


class TerminalScreen:
    """A full-screen terminal view: an image above, lines of text below."""

    def __init__(self, text_lines: int) -> None:
        self._text_lines = text_lines
        self._stdin_fd = sys.stdin.fileno()
        self._saved_attributes: Any = None
        self._size: tuple[int, int] = (0, 0)
        self._shown_lines: list[str] = []
        self.renderer: ImageRenderer = HalfBlockRenderer()

    def __enter__(self) -> TerminalScreen:
        self._saved_attributes = termios.tcgetattr(self._stdin_fd)
        tty.setcbreak(self._stdin_fd)
        self._write(_ENTER_SEQUENCE)
        self.renderer = select_renderer(self._query(_KITTY_QUERY + _ATTRIBUTES_QUERY))
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_EXIT_SEQUENCE)
        termios.tcsetattr(self._stdin_fd, termios.TCSAFLUSH, self._saved_attributes)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _query(self, query: str) -> str:
        """Returns the terminal's reply. Every terminal answers the query for its attributes, which comes last."""
        self._write(query)
        reply = ""
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while not _ATTRIBUTES_PATTERN.search(reply) and (left_s := deadline - time.monotonic()) > 0:
            reply += self.read_keys(left_s)
        return reply

    def draw_area(self) -> DrawArea:
        """The current size of the terminal, which is cleared where its size has changed."""
        size = shutil.get_terminal_size()
        if size != self._size:
            self._size = size
            self._write(f"{_ESC}[2J")
            self._shown_lines = []
            self.renderer.reset()
        return DrawArea(size.columns, max(1, size.lines - self._text_lines), _cell_size_px(size.columns, size.lines))

    def draw(self, image: Image, area: DrawArea) -> None:
        self._write(self.renderer.render(image, area))

    def clear(self) -> None:
        self._size = (0, 0)

    def set_text(self, lines: list[str]) -> None:
        """The text below the image."""
        if lines != self._shown_lines:
            self._shown_lines = lines
            columns, height = self._size
            first = height - self._text_lines + 1
            for at, line in enumerate(lines[: self._text_lines], first):
                self._write(f"{_ESC}[{at};1H{_ESC}[0m{_ESC}[K{make_printable(line, kept='')[: columns - 1]}")

    def read_keys(self, timeout_s: float) -> str:
        """Keys that were pressed, waiting up to the timeout."""
        if not select.select([self._stdin_fd], [], [], timeout_s)[0]:
            return ""
        return os.read(self._stdin_fd, 1024).decode(errors="replace")


_ATTRIBUTES_PATTERN = re.compile(r"\x1b\[\?([\d;]*)c")


def select_renderer(reply: str) -> ImageRenderer:
    """The best renderer for what the terminal supports."""
    if "_Gi=31;OK" in reply:
        return KittyRenderer()
    attributes = _ATTRIBUTES_PATTERN.search(reply)
    if attributes and "4" in attributes[1].split(";")[1:]:
        return SixelRenderer()
    return HalfBlockRenderer()


def _cell_size_px(columns: int, lines: int) -> tuple[int, int]:
    try:
        _, _, width, height = struct.unpack("4H", fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8)))
    except OSError:
        return DEFAULT_CELL_SIZE_PX
    return (width // columns, height // lines) if width >= columns and height >= lines else DEFAULT_CELL_SIZE_PX
