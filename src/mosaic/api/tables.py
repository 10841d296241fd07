"""Tables of results: as pandas data frames and as HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from mosaic.contracts.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd


Column = Sequence[Any] | npt.NDArray[Any]


def make_frame(columns: Mapping[str, Column]) -> pd.DataFrame:
    """Return a data frame of columns of equal length; MissingExtra where pandas is not installed."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise MissingExtra("to_frame() needs pandas, which is not installed: pip install 'mosaic-rl[pandas]'") from None
    return pd.DataFrame(dict(columns))


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a small HTML table; cells are escaped."""
    head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if header else ''}<tbody>{body}</tbody></table>"
