"""Pieces of a report as HTML: places of charts, tables, numbers and paragraphs."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np


class Charts:
    """Charts in the order in which they are placed; the script draws them."""

    def __init__(self) -> None:
        self.drawn: list[dict[str, Any]] = []

    def place(self, chart: dict[str, Any], caption: str = "", kind: str = "") -> str:
        """Return the place of a chart, with its caption as HTML."""
        self.drawn.append(chart)
        label = escape(str(chart.get("title", "")))
        drawing = f'<svg class="chart" role="img" aria-label="{label}" data-chart="{len(self.drawn) - 1}"></svg>'
        return f'<figure class="{kind}">{drawing}<figcaption>{caption}</figcaption></figure>'


def table(names: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "", kind: str = "") -> str:
    """Return a table that scrolls in itself where it is too wide; the first column heads its rows.

    Cells of `kind` "words" are aligned to the left, of "two" those of the second column.
    """
    head = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(str(first))}</th>{"".join(f"<td>{escape(str(cell))}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    about = f"<caption>{escape(caption)}</caption>" if caption else ""
    content = f"{about}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{content}</table></div>'


def number(value: Any, error: Any = None) -> str:
    """Return a number of four digits, with its standard error if it has one."""
    if value is None:
        return "–"
    if error is not None:
        return f"{value:.3g} ± {error:.2g}"
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.4g}"


def paragraph(*texts: str) -> str:
    """Return sentences as a paragraph."""
    return f"<p>{escape(' '.join(text for text in texts if text))}</p>"


def date(days: float) -> str:
    """Return a date, with the minute if it is not midnight, from days since 1970."""
    try:
        return str(np.datetime64(round(days * 86400), "s")).removesuffix("T00:00:00").replace("T", " ")[:16]
    except (OverflowError, ValueError):
        return number(days)
