"""Results as Markdown tables and as one JSON file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from speed.timing import Spread, ratio, spread


class Row(NamedTuple):
    """One measurement of a table."""

    name: str
    seconds: Spread
    over_ours: Spread | None = None  # ratio of its time to ours in the same round
    over_floor: float | None = None  # ratio of its time to the arithmetic floor
    columns: dict[str, Any] = {}  # noqa: RUF012  further columns, never changed


class Section(NamedTuple):
    """One table with its configuration and notes."""

    title: str
    configuration: dict[str, Any]
    per: str  # unit of the times: step, run, task
    rows: list[Row]
    notes: list[str]
    figures: dict[str, Any] = {}  # noqa: RUF012  numbers outside the rows, never changed


def rows_of(times: Mapping[str, np.ndarray], ours: str, floor: float | None = None) -> list[Row]:
    """Return a row per contestant, with the ratio of its time to ours by round."""
    return [
        Row(
            name,
            spread(of_name),
            None if name == ours else ratio(of_name, times[ours]),
            None if floor is None else spread(of_name).median / floor,
        )
        for name, of_name in times.items()
    ]


def as_markdown(machine: Mapping[str, Any], sections: Sequence[Section]) -> str:
    """Return all tables as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"Measured on {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB "
        f"({', '.join(machine['devices'])}); load before: {machine['load_before']}; python {machine['python']}; "
        f"{versions}. Medians with quartiles in brackets; contestants take turns, and ratios are taken within rounds.",
    ]
    for section in sections:
        lines += ["", f"### {section.title}", "", *_table(section), ""]
        lines += [f"- {note}" for note in section.notes]
    return "\n".join(lines) + "\n"


def as_json(options: Mapping[str, Any], machine: Mapping[str, Any], sections: Sequence[Section]) -> str:
    """Return all results as JSON."""
    content = {"options": options, "machine": machine, "sections": [_plain(section) for section in sections]}
    return json.dumps(content, indent=1, default=_number) + "\n"


def write(path: Path, options: Mapping[str, Any], machine: Mapping[str, Any], sections: Sequence[Section]) -> None:
    """Write the JSON file, and the Markdown tables beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(options, machine, sections))
    path.with_suffix(".md").write_text(as_markdown(machine, sections))


def duration(seconds: float) -> str:
    """Format seconds with three digits in a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _table(section: Section) -> list[str]:
    columns = list(dict.fromkeys(name for row in section.rows for name in row.columns))
    compared = any(row.over_ours is not None for row in section.rows)
    floored = any(row.over_floor is not None for row in section.rows)
    header = ["", f"time per {section.per}"]
    header += ["times ours"] * compared + ["times floor"] * floored + columns
    lines = [_line(header), _line(["---"] + ["---:"] * (len(header) - 1))]
    for row in section.rows:
        time = row.seconds
        cells = [row.name, f"{duration(time.median)} ({duration(time.low)} to {duration(time.high)})"]
        cells += [_times(row.over_ours)] * compared
        cells += ["" if row.over_floor is None else f"{row.over_floor:.3g}"] * floored
        cells += [str(row.columns.get(name, "")) for name in columns]
        lines.append(_line(cells))
    return lines


def _times(times: Spread | None) -> str:
    return "1" if times is None else f"{times.median:.3g} ({times.low:.3g} to {times.high:.3g})"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(section: Section) -> dict[str, Any]:
    rows = [
        row._asdict()
        | {"seconds": row.seconds._asdict(), "over_ours": None if row.over_ours is None else row.over_ours._asdict()}
        for row in section.rows
    ]
    return section._asdict() | {"rows": rows}


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
