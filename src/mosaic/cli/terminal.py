"""Pictures in a terminal: coloured half blocks anywhere, real pixels where the terminal says that it can."""

from __future__ import annotations

import base64
import os
import re
import select
import shutil
import sys
import termios
import time
import tty
import zlib
from typing import Any, NamedTuple, Protocol

import numpy as np

_ESC = "\x1b"
_BEGIN = "\x1b[?1049h\x1b[?25l\x1b[2J"
_END = "\x1b[0m\x1b[?25h\x1b[?1049l"
_KITTY_QUESTION = "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\"
_ATTRIBUTES_QUESTION = "\x1b[c"
ANSWER_S = 0.3
CELL = (8, 16)
"""Pixels of a character where the terminal does not say: width, height."""
LONGEST_SIDE = 640


class Room(NamedTuple):
    """Characters that a picture may take, and the size of one in pixels."""

    columns: int
    lines: int
    cell: tuple[int, int] = CELL


class Brush(Protocol):
    def pixels(self, room: Room) -> tuple[int, int]:
        """How large a picture fits: width, height."""

    def paint(self, picture: Any, room: Room) -> str:
        """What to write so that it appears in the room's middle."""

    def forget(self) -> None:
        """The screen was cleared."""


class HalfBlocks:
    """Two pixels a character: one is the sign's colour, the other its background. Lines that stay are not repeated."""

    def __init__(self) -> None:
        self._lines: dict[int, bytes] = {}

    def pixels(self, room: Room) -> tuple[int, int]:
        return room.columns, 2 * room.lines

    def paint(self, picture: Any, room: Room) -> str:
        high, wide = picture.shape[0] // 2 * 2, picture.shape[1]
        top = (room.lines - high // 2) // 2 + 1
        left = (room.columns - wide) // 2 + 1
        written = []
        for line in range(high // 2):
            pair = np.ascontiguousarray(picture[2 * line : 2 * line + 2])
            data = pair.tobytes() + bytes((left % 256,))
            if self._lines.get(top + line) != data:
                self._lines[top + line] = data
                written.append(f"{_ESC}[{top + line};{left}H{half_blocks(pair)}")
        return "".join(written)

    def forget(self) -> None:
        self._lines.clear()


def half_blocks(pair: Any) -> str:
    """One line of text for two rows of pixels."""
    signs = []
    before = None
    for upper, lower in zip(pair[0].tolist(), pair[1].tolist(), strict=True):
        now = (*upper, *lower)
        if now != before:
            signs.append(f"{_ESC}[38;2;{now[0]};{now[1]};{now[2]};48;2;{now[3]};{now[4]};{now[5]}m")
            before = now
        signs.append("▀")
    return "".join(signs) + f"{_ESC}[0m"


class _Pixels:
    def pixels(self, room: Room) -> tuple[int, int]:
        wide, high = room.columns * room.cell[0], room.lines * room.cell[1]
        share = min(1.0, LONGEST_SIDE / max(wide, high))
        return int(wide * share), int(high * share)

    def forget(self) -> None:
        pass


class Kitty(_Pixels):
    """Kitty's graphics protocol: the terminal scales. The same image is replaced by the next one."""

    def paint(self, picture: Any, room: Room) -> str:
        high, wide = picture.shape[:2]
        scale = min(room.columns * room.cell[0] / wide, room.lines * room.cell[1] / high)
        columns = max(1, int(wide * scale / room.cell[0]))
        lines = max(1, int(high * scale / room.cell[1]))
        data = base64.b64encode(zlib.compress(np.ascontiguousarray(picture).tobytes(), 1)).decode()
        begin = f"a=T,q=2,i=1,p=1,C=1,f=24,o=z,s={wide},v={high},c={columns},r={lines},"
        parts = [data[at : at + 4096] for at in range(0, len(data), 4096)] or [""]
        written = [f"{_ESC}[{(room.lines - lines) // 2 + 1};{(room.columns - columns) // 2 + 1}H"]
        for number, part in enumerate(parts):
            keys = begin if number == 0 else ""
            written.append(f"{_ESC}_G{keys}m={int(number < len(parts) - 1)};{part}{_ESC}\\")
        return "".join(written)


class Sixel(_Pixels):
    """Six rows of pixels a sign, at most 216 colours."""

    def pixels(self, room: Room) -> tuple[int, int]:
        wide, high = room.columns * room.cell[0], room.lines * room.cell[1]
        return wide, high // 6 * 6

    def paint(self, picture: Any, room: Room) -> str:
        high, wide = picture.shape[:2]
        top = (room.lines - -(-high // room.cell[1])) // 2 + 1
        left = (room.columns - -(-wide // room.cell[0])) // 2 + 1
        return f"{_ESC}[{max(1, top)};{max(1, left)}H{sixels(picture)}"


def sixels(picture: Any) -> str:
    """A picture in DEC's code."""
    high, wide = picture.shape[:2]
    levels = (np.asarray(picture[:, :, :3], np.uint16) * 5 + 127) // 255
    colours = (levels[:, :, 0] * 36 + levels[:, :, 1] * 6 + levels[:, :, 2]).astype(np.uint8)
    used = np.unique(colours).tolist()
    written = [f'{_ESC}P0;1q"1;1;{wide};{high}']
    written += [f"#{c};2;{c // 36 * 20};{c // 6 % 6 * 20};{c % 6 * 20}" for c in used]
    for top in range(0, high, 6):
        band = colours[top : top + 6]
        weights = (1 << np.arange(len(band), dtype=np.uint8))[:, None]
        lines = []
        for colour in np.unique(band).tolist():
            signs = (((band == colour) * weights).sum(0, dtype=np.uint8) + 63).tobytes().decode("ascii")
            lines.append(f"#{colour}" + _REPEATED.sub(lambda run: f"!{len(run[0])}{run[0][0]}", signs))
        written.append("$".join(lines) + "-")
    return "".join(written) + f"{_ESC}\\"


_REPEATED = re.compile(r"(.)\1{3,}", re.DOTALL)


class Screen:
    """The whole terminal, until it is left: a picture above and lines of text below."""

    def __init__(self, text_lines: int) -> None:
        self._text_lines = text_lines
        self._keyboard = sys.stdin.fileno()
        self._before: Any = None
        self._size: tuple[int, int] = (0, 0)
        self._said: list[str] = []
        self.brush: Brush = HalfBlocks()

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(self._keyboard)
        tty.setcbreak(self._keyboard)
        self._write(_BEGIN)
        self.brush = brush_for(self._asked(_KITTY_QUESTION + _ATTRIBUTES_QUESTION))
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_END)
        termios.tcsetattr(self._keyboard, termios.TCSAFLUSH, self._before)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _asked(self, question: str) -> str:
        """What the terminal answers; every one answers the question for its attributes, which comes last."""
        self._write(question)
        found = ""
        deadline = time.monotonic() + ANSWER_S
        while not _ATTRIBUTES.search(found) and (left := deadline - time.monotonic()) > 0:
            if select.select([self._keyboard], [], [], left)[0]:
                found += os.read(self._keyboard, 1024).decode(errors="replace")
        return found

    def room(self) -> Room:
        """As large as the terminal is now; it is cleared where that has changed."""
        size = shutil.get_terminal_size()
        if size != self._size:
            self._size = size
            self._write(f"{_ESC}[2J")
            self._said = []
            self.brush.forget()
        return Room(size.columns, max(1, size.lines - self._text_lines), _cell(size.columns, size.lines))

    def paint(self, picture: Any, room: Room) -> None:
        self._write(self.brush.paint(picture, room))

    def clear(self) -> None:
        self._size = (0, 0)

    def say(self, lines: list[str]) -> None:
        """The text below the picture."""
        if lines != self._said:
            self._said = lines
            columns, height = self._size
            begin = height - self._text_lines + 1
            self._write(
                "".join(
                    f"{_ESC}[{begin + at};1H{_ESC}[0m{_ESC}[K{line[: columns - 1]}"
                    for at, line in enumerate(lines[: self._text_lines])
                )
            )

    def keys(self, timeout_s: float) -> str:
        """What was typed, waiting so long for it."""
        if not select.select([self._keyboard], [], [], timeout_s)[0]:
            return ""
        return os.read(self._keyboard, 1024).decode(errors="replace")


_ATTRIBUTES = re.compile(r"\x1b\[\?([\d;]*)c")


def brush_for(answer: str) -> Brush:
    """The best way to a picture, from what the terminal answered."""
    if "_Gi=31;OK" in answer:
        return Kitty()
    attributes = _ATTRIBUTES.search(answer)
    if attributes and "4" in attributes[1].split(";")[1:]:
        return Sixel()
    return HalfBlocks()


def _cell(columns: int, lines: int) -> tuple[int, int]:
    import fcntl
    import struct

    try:
        _, _, wide, high = struct.unpack("4H", fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8)))
    except OSError:
        return CELL
    return (wide // columns, high // lines) if wide >= columns and high >= lines else CELL
