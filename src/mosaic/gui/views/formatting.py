"""Numbers, times and names as people read them."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

from mosaic.contracts.run_kind import RunKind


def short_id(run_id: str) -> str:
    return run_id[-6:]


def run_title(view: RunView) -> str:
    """`CartPole-v1 · ppo · seed 1 · ABC123`."""
    parts = [view.env_id, view.algo or view.worker]
    if view.seed is not None:
        parts.append(f"seed {view.seed}")
    title = " · ".join(str(part) for part in (*parts, short_id(view.run_id)) if part)
    return f"{title} (Eval)" if view.kind == RunKind.POLICY_EVAL else title


def state_of(view: RunView) -> str:
    """The outcome of a run that has ended, else its stage."""
    if view.is_stalled:
        return "stalled"
    return str(view.outcome or view.stage)


def format_number(value: float | None, digits: int = 4) -> str:
    """SI-shortened: 482.1, 50.7k, 1.2M."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{value / scale:.3g}{unit}"
    if value == int(value) and abs(value) < 1e4:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def format_duration(seconds: float | None) -> str:
    """3m 12s."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    shown = [f"{amount}{unit}" for amount, unit in parts if amount]
    return " ".join(shown[:2]) or "0s"


def format_size(size_bytes: float) -> str:
    """3.4 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"


def format_age(at: float | None) -> str:
    """2 min ago."""
    if at is None:
        return "–"
    seconds = max(0.0, time.time() - at)
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (math.inf, 86400, "d")):
        if seconds < limit:
            return f"{int(seconds // size)} {unit} ago"
    raise AssertionError


def format_timestamp(at: float | None) -> str:
    return "–" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def progress_fraction(view: RunView) -> float | None:
    """From 0 to 1; a run that has done what it was asked to do is at 1."""
    if view.outcome == "succeeded":
        return 1.0
    total, step = view.total_timesteps, view.global_step
    return min(1.0, step / total) if total and step is not None else None
