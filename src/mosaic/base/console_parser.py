"""What scripts print about their progress: CleanRL's line and Stable-Baselines3's table.

`global_step=512, episodic_return=[21.]` in any order and with any of KNOWN; or a box of `|  key  | value |` rows under
`| section/ |` rows. Standard library only, and Python 3.8: the probe and the keeper use it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

KNOWN_KEYS = (
    "global_step",
    "episodic_return",
    "episodic_length",
    "time_elapsed",
    "total_timesteps",
    "fps",
    "wall_time",
)
MAX_LINE_LENGTH = 4096
"""Longer lines are skipped."""
_NUMBER = r"-?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+|inf|nan)"
_CLOCK = r"\d+(?::[0-5]?\d){1,2}(?:\.\d+)?"
# Values come as numbers, as arrays (`[21.]`) and as what numpy 2 prints for its scalars (`np.float32(21.0)`).
_KEYS = "|".join(KNOWN_KEYS).replace("_", "[_ ]")  # PureJaxRL prints `global step`
_PAIR = re.compile(rf"\b({_KEYS})\s*[=:][\s\[]*(?:[\w.]+\([\s\[]*)?({_CLOCK}|{_NUMBER})")
_ROW = re.compile(r"\|([^|]*)\|([^|]*)\|")
_RULE = re.compile(r"-{5,}")
_END = re.compile(r"[\r\n]+")


class ConsoleReading(NamedTuple):
    """What was parsed from one line or one table."""

    step: int | None
    """For a line without `global_step`: that of the last line with one."""
    total_timesteps: int | None
    episodic_return: float | None
    episodic_length: int | None
    scalars: dict[str, float]
    """By tag."""


class ConsoleParser:
    """Takes text as it comes, in pieces, and gives what it understood."""

    def __init__(self) -> None:
        self._rest = ""
        self._is_skipping_line = False
        self._section = ""
        self._table: dict[str, float] = {}
        self._step: int | None = None
        """The last `global_step` that was printed."""

    def feed(self, text: str) -> list[ConsoleReading]:
        lines = _END.split(self._rest + text)
        self._rest = lines.pop()
        found = []
        for line in lines:
            if self._is_skipping_line:
                self._is_skipping_line = False
                continue
            reading = self._parse_line(line)
            if reading is not None:
                found.append(reading)
        if len(self._rest) > MAX_LINE_LENGTH:
            self._rest, self._is_skipping_line = "", True
        return found

    def _parse_line(self, line: str) -> ConsoleReading | None:
        if len(line) > MAX_LINE_LENGTH:
            return None
        row = _ROW.fullmatch(line.strip())
        if row is not None:
            self._parse_row(row.group(1).strip(), row.group(2).strip())
            return None
        if self._table and _RULE.fullmatch(line.strip()):
            table, self._table, self._section = self._table, {}, ""
            return _reading_from_table(table)
        pairs = {name.replace(" ", "_"): _to_number(value) for name, value in _PAIR.findall(line)}
        if pairs.keys() <= {"total_timesteps"}:
            return None  # alone it may be the steps done or the steps to do
        if "global_step" in pairs:
            self._step = _to_int(pairs["global_step"])
        return _reading_from_line(self._step, pairs)

    def _parse_row(self, name: str, value: str) -> None:
        if not value and name.endswith("/"):
            self._section = name
            return
        try:
            number = float(value)
        except ValueError:
            return
        if name and "..." not in name and len(self._table) < 1000:
            self._table[self._section + name] = number


def _to_number(text: str) -> float:
    """Convert a number, or a time such as `00:01:05` to seconds."""
    number = 0.0
    for part in text.split(":"):
        number = number * 60 + float(part)
    return number


def _to_int(value: float | None) -> int | None:
    """None also for what is not finite or does not fit into 64 bits."""
    return int(value) if value is not None and abs(value) < 1 << 63 else None


def _reading_from_line(step: int | None, pairs: dict[str, float]) -> ConsoleReading:
    further = {"charts/SPS": "fps", "time/time_elapsed": "time_elapsed", "time/wall_time": "wall_time"}
    return ConsoleReading(
        step,
        _to_int(pairs.get("total_timesteps")),
        pairs.get("episodic_return"),
        _to_int(pairs.get("episodic_length")),
        {tag: pairs[name] for tag, name in further.items() if name in pairs},
    )


def _reading_from_table(table: dict[str, float]) -> ConsoleReading | None:
    step = _to_int(table.get("time/total_timesteps", table.get("total_timesteps")))
    return None if step is None else ConsoleReading(step, None, None, None, table)
