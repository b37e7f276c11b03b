"""Item 5: time and memory of a step against the number of tasks, samples, particles and input dimensions; padding."""

import json
from collections.abc import Callable
from typing import Any

from speed.growth_point import LARGEST, RAGGED_TASKS, SIZES, ragged_sizes
from speed.processes import run_module
from speed.report import Row, Section
from speed.timing import Spread

GROWTH = {
    "tasks": ((10, 100, 1000, 10_000, 100_000), {}, "N tasks of 5 samples"),
    "samples": ((5, 20, 50, 100, 300, 1000), {"tasks": 10}, "M samples in each of 10 tasks"),
    "particles": ((1, 4, 16, 64), {}, "K particles of SVGD, 30 tasks of 5 samples"),
    "input_dim": ((1, 10, 100, 1000), {}, "input dimensions, 30 tasks of 5 samples"),
}
QUICK = {"tasks": (1000, 10_000), "samples": (100,), "particles": (16,), "input_dim": (100,)}
BUCKETS = (1, 2, 3)


def measure(quick: bool, say: Callable[[str], None]) -> list[Section]:
    """Return a table per quantity; every point is measured in its own process."""
    sections = [_growth(name, quick, say) for name in GROWTH]
    return [*sections, _padding(quick, say)]


def _growth(name: str, quick: bool, say: Callable[[str], None]) -> Section:
    values, others, title = GROWTH[name]
    values = QUICK[name] if quick else values
    points = {}
    for value in values:
        points[value] = _point({name: value, **others}, quick)
        say(f"{name} = {value}: {1e3 * points[value]['seconds']['median']:.3g} ms a step")
    rows = [_row(f"{value:,}", point) for value, point in points.items()]
    notes = ["time of a full-batch step; memory is the increase to its peak during training, including compilation"]
    figures: dict[str, Any] = {"points": points}
    largest, smaller = max(values), 1000
    if name == "tasks" and largest > smaller in points:
        times = {n: points[n]["seconds"]["median"] for n in (largest, smaller)}
        figures["linearity"] = times[largest] / times[smaller] / (largest / smaller)
        notes.append(f"time({largest:,}) / time({smaller:,}) / {largest // smaller} = {figures['linearity']:.3g}")
    return Section(f"Growth: {title}", {"values": values, **others}, "step", rows, notes, figures)


def _padding(quick: bool, say: Callable[[str], None]) -> Section:
    rows = []
    for n_buckets in BUCKETS[-1:] if quick else BUCKETS:
        point = _point({"buckets": n_buckets}, quick)
        say(f"at most {n_buckets} buckets: {1e3 * point['seconds']['median']:.3g} ms a step")
        row = _row(f"at most {n_buckets} bucket{'s' * (n_buckets > 1)}", point)
        more = {"buckets": point["buckets"], "padded / real samples": f"{point['padding']:.3g}"}
        rows.append(row._replace(columns=more | row.columns))
    notes = [
        f"{RAGGED_TASKS} tasks of log-uniform sizes from 1 to {LARGEST}, of which "
        f"{len(set(ragged_sizes().tolist()))} are different"
    ]
    if not quick:
        ideal = Spread(**_point({"without_padding": True}, quick)["seconds"])
        rows.append(Row("no padding", ideal, columns={"padded / real samples": "1"}))
        notes.append(
            f"no padding: the sum of the times per task in batches of one size, measured at "
            f"{', '.join(map(str, SIZES))} samples and interpolated; a program with a bucket for every size takes "
            "minutes to compile"
        )
    return Section("Padding of ragged tasks, by buckets", {"tasks": RAGGED_TASKS}, "step", rows, notes)


def _point(asked: dict[str, Any], quick: bool) -> dict[str, Any]:
    asked = asked | {"budget": 0.5 if quick else 2.0}
    return json.loads(run_module("speed.growth_point", json.dumps(asked), timeout=600).splitlines()[-1])


def _row(name: str, point: dict[str, Any]) -> Row:
    columns = {"peak memory": f"{point['peak_bytes'] / 2**20:.0f} MB", "first call": f"{point['first_call']:.1f} s"}
    return Row(name, Spread(**point["seconds"]), columns=columns)
