"""The report of a fit as one HTML file, which needs no other file and no network."""

import base64
import hashlib
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader

from metaprior.checks import counted
from metaprior.cli.info import conformal_words
from metaprior.cli.training_data import Fit
from metaprior.files import nan_to_none
from metaprior.metrics import meaning_of
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.categories import is_missing
from metaprior.tasks.types import Task
from metaprior_app.charts import Prior, axes_of, draw_tasks
from metaprior_app.examples import axis, calibration_chart, examples, reliability_chart
from metaprior_app.held_out import Sample, Tested, held_out_tasks, sample_training
from metaprior_app.priors import candidates_of

MAX_DRAWN = 6  # environments
MAX_INPUTS = 8  # columns that are listed
MAX_CLASSES = 12  # that are listed
MIN_TASKS = 5  # of fewer, a mean and a standard deviation come close to the readings themselves
HERE = Path(__file__).parent


def number(value: float | None, error: float | None = None) -> str:
    """Return a number of four digits, with its standard error if it has one."""
    if value is None or not np.isfinite(value):
        return "–"
    if error is not None and np.isfinite(error):
        return f"{value:.3g} ± {error:.2g}"
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.4g}"


def date(days: float) -> str:
    """Return a date, with the minute if it is not midnight, from days since 1970."""
    try:
        return str(np.datetime64(round(days * 86400), "s")).removesuffix("T00:00:00").replace("T", " ")[:16]
    except (OverflowError, ValueError):
        return number(days)


def fit_report(fitted: Fit, notes: Sequence[dict[str, str]] = (), with_data: bool = True) -> bytes:
    """Return the page on a fit. Without held-out tasks the prior is fitted again, without some tasks each time.

    `with_data=False` leaves out readings, names of tasks and values of columns. Notes and reasons may quote them.
    """
    started, meta, report = time.monotonic(), fitted.meta, fitted.meta.transfer_report()
    sample = sample_training(fitted.tasks, fitted.seed)
    tested = held_out_tasks(fitted, sample)
    order = sorted(sample.tasks, key=lambda name: (name != fitted.target, -len(sample.tasks[name])))
    shown = examples(fitted, tested) if tested.groups and with_data else []
    charts = _task_charts(fitted, sample, order[:MAX_DRAWN]) if with_data else []
    conformal, columns = meta.model_.conformal, fitted.tasks.columns
    if meta.features_.exposure is not None:
        columns = {**columns, "exposure": columns["x"][meta.features_.exposure]}
    columns = {name: value for name, value in columns.items() if value}
    facts = {
        "fitted": fitted,
        "meta": meta,
        "report": report,
        "shares": zip(report.names, report.weight @ report.environment_weights, strict=True),
        "families": [(name, f"{weight:.2f}") for name, weight in Counter(report.families).most_common()],
        "what": "labels" if fitted.tasks.labels else "readings",
        "with_data": with_data,
        "source": "a pipe" if fitted.is_pipe else str(fitted.tasks.source).rstrip("/").rpartition("/")[2],
        "columns": columns,
        "contains": _contents(fitted, charts, shown),
        "data": _data(fitted, sample, order, with_data),
        "sampled": None if sample.is_whole else max(map(len, sample.tasks.values())),
        "n_inputs": len(columns["x"]),
        "listed": MAX_INPUTS,
        "charts": charts,
        "candidates": _candidates(meta),
        "how": tested.how if with_data or tested.groups else None,
        "scores": _scores(tested, columns["y"], meta.report_.outputs),
        "tested": tested,
        "calibration": _calibration(fitted, tested),
        "conformal": conformal and conformal_words(conformal.n_tasks, len(conformal.folds), conformal.rule),
        "examples": shown,
        "parameters": _parameters(meta),
        "roles": [(name, ", ".join([value] if isinstance(value, str) else value)) for name, value in columns.items()],
        "notes": [note["message"] for note in notes] if with_data else [],
        "command": shlex.join([*fitted.command[:2], "-", *fitted.command[3:]] if fitted.is_pipe else fitted.command),
        "seconds": lambda: round(time.monotonic() - started, 1),
    }
    return _render(facts).encode("utf-8", "replace")  # of halves of surrogate pairs


def _render(facts: dict[str, Any]) -> str:
    """Return the page. Scripts and styles other than its own are refused, and so is any request."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "counted": counted}
    style, script = _static("style.css"), f"{_static('charts.js')}\n{_static('report.js')}"
    policy = f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
    drawn: list[dict[str, Any]] = []  # charts in the order of their places

    def place(chart: dict[str, Any]) -> int:
        drawn.append(nan_to_none(chart))
        return len(drawn) - 1

    static = {"style": style, "script": script, "policy": f"{policy}base-uri 'none'; form-action 'none'"}
    return environment.get_template("report.html").render(facts, **static, place=place, drawn=drawn)


def _static(name: str) -> str:
    return (HERE / "static" / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _contents(fitted: Fit, charts: list[dict[str, Any]], shown: list[dict[str, Any]]) -> str:
    """Return in words of how many tasks a report has readings and names; held-out ones are not among those drawn."""
    drawn = {chart["name"]: len(chart["given"].get("tasks", ())) for chart in charts}
    among_drawn = fitted.held_out is None and drawn.get(fitted.target or "", 0) > 0
    n_tasks = sum(drawn.values()) + (0 if among_drawn else len(shown))
    if not n_tasks:
        return "the smallest and largest values of the data"
    named = f" and the names of {len(shown)} of them" if shown else ""
    return f"the {fitted.meta.report_.outputs} of {counted(n_tasks, 'task')}{named}"


def _data(fitted: Fit, sample: Sample, order: list[str], with_data: bool) -> dict[str, Any]:
    """Return tables of the environments: sizes, ranges of columns, levels of categories and labels.

    Ranges of stored tasks are those of the sample.
    """
    data, names = fitted.tasks, fitted.tasks.columns["x"][:MAX_INPUTS]
    sizes, ranges, levels, labels = [], [], [], {}
    columns = [*enumerate(names), *([] if data.labels else [(None, data.columns["y"])])]
    titles = {name: f"{name} (target)" if name == fitted.target else name or "all" for name in order}
    tasks: dict[str, Sequence[Task]] = {}
    for name, title in titles.items():
        given = data.environments[name]
        n = given.sizes if isinstance(given, StoredTasks) else np.array([len(task.y) for task in given])
        tasks[name] = sample.tasks[name] if isinstance(given, StoredTasks) else given
        typical = number(float(np.median(n))) if with_data or len(given) >= MIN_TASKS else "–"
        span = f" ({n.min():,}–{n.max():,})" if with_data else ""
        sizes.append((title, f"{len(given):,}", f"{n.sum():,}", typical + span))
        if data.labels and with_data:
            labels[title] = Counter(str(label) for task in tasks[name] for label in task.y.tolist())
    for i, column in columns:
        for name, title in titles.items():
            values = np.concatenate([task.y if i is None else task.x[:, i] for task in tasks[name]])
            if column in (data.columns.get("categorical") or ()):
                counts = Counter(str(cell) for cell in values.tolist() if not is_missing(cell)).most_common()
                more = [f"{len(counts) - MAX_CLASSES} more"] * (len(counts) > MAX_CLASSES)
                said = [f"{level} {count:,}" for level, count in counts[:MAX_CLASSES]] + more
                levels += [(column, title, ", ".join(said) or "–")] if with_data else []
            else:
                many = len(data.environments[name]) >= MIN_TASKS
                ranges.append((column, title, *_spread(values.astype(float), column in data.dates, with_data, many)))
    total = sum(labels.values(), Counter())
    counts = [(label, *(f"{of[label]:,}" for of in labels.values())) for label, _ in total.most_common(MAX_CLASSES)]
    n_samples = sum(int(row[2].replace(",", "")) for row in sizes)
    return {
        "sizes": sizes,
        "ranges": ranges,
        "levels": levels,
        "labels": counts,
        "names": [*labels],
        "more_labels": len(total) - len(counts),
        "n_samples": n_samples,
        "n_tasks": sum(map(len, data.environments.values())),
    }


def _spread(values: np.ndarray, dates: bool, with_data: bool, many: bool) -> list[str]:
    """Return smallest, largest, mean and standard deviation; without data only of many tasks that differ."""
    values = values[np.isfinite(values)]  # covariates may be missing
    mean, std = (float(values.mean()), float(values.std())) if len(values) else (np.nan, np.nan)
    told = len(values) > 0 and (
        with_data or (many and std > 1e-9 * abs(mean))
    )  # without spread, the mean is every value
    ends = ([values.min(), values.max()] if len(values) else [np.nan] * 2) if with_data else []
    if not told:
        return ["–"] * (len(ends) + 2)
    shown = date if dates else number
    return [*(shown(float(each)) for each in (*ends, mean)), number(std) + (" days" if dates else "")]


def _task_charts(fitted: Fit, sample: Sample, order: list[str]) -> list[dict[str, Any]]:
    """Return a chart of the tasks of each environment along the first input of numbers, all with the same axes.

    Counts with an exposure are drawn as rates.
    """
    data, exposure = fitted.tasks, fitted.meta.features_.exposure
    along, names = axes_of(fitted.meta), data.columns["x"]
    if data.labels or not along:
        return []
    tasks = {}
    for name in order:
        rates = (
            task.y / (1.0 if exposure is None else task.x[:, exposure].astype(float)) for task in sample.tasks[name]
        )
        x = (task.x[:, [along[0]]].astype(float) for task in sample.tasks[name])
        tasks[name] = [Task(*pair) for pair in zip(x, rates, strict=True)]
    every = [task for name in order for task in tasks[name]]
    x = axis([task.x for task in every], names[along[0]], names[along[0]] in data.dates)
    y = axis([task.y for task in every], data.columns["y"] + (f" / {names[exposure]}" if exposure is not None else ""))
    charts = []
    for name in order:
        title = f"{len(tasks[name])} tasks{f' of {name}' if name else ''}: {y['label']} along {x['label']}"
        given = draw_tasks(tasks[name], 0, y["domain"])
        charts.append({"kind": "tasks", "title": title, "name": name, "x": x, "y": y, "given": given})
    return charts


def _candidates(meta: Prior) -> dict[str, Any] | None:
    found = candidates_of(meta)
    return found and {"kind": "candidates", "title": f"{found['label']}, of {len(found['rows'])} settings", **found}


def _parameters(meta: Any) -> list[tuple[str, str, str]]:
    """Return name and value of every argument that matters, those that differ from the default first."""
    defaults = type(meta)().get_params(deep=False)
    given = {name: value for name, value in meta.parameters_.items() if name != "progress"}
    rows = [(name, repr(value), "" if repr(value) == repr(defaults[name]) else "yes") for name, value in given.items()]
    return sorted(rows, key=lambda row: not row[2])


def _scores(tested: Tested, y: str, outputs: str) -> dict[str, Any] | None:
    """Return a table of the scores of all models on held-out tasks, and what its columns mean."""
    scores = tested.compared.scores
    if not tested.groups:
        return None
    own = scores["metaprior"]
    names = [*own.per_task, *(["calibration_error"] if np.isfinite(own.calibration_error) else [])]
    rows = [(who, *(number(of.get(name), of.get(f"{name}_se")) for name in names)) for who, of in scores.items()]
    titles = [name.replace("_", " ") for name in names]
    meanings = (meaning_of(name, outputs).replace("the units of y", f"the units of {y}") for name in names)
    said = (f"{title}: {meaning}" for title, meaning in zip(titles, meanings, strict=True))
    return {
        "names": titles,
        "rows": rows,
        "meanings": "; ".join(said).replace("the interval", "the 90% interval"),
        "own": own,
        "others": [(who, of) for who, of in scores.items() if who != "metaprior"],
    }


def _calibration(fitted: Fit, tested: Tested) -> dict[str, Any]:
    if not tested.groups:
        return {}
    scores = tested.compared.scores["metaprior"]
    chart = reliability_chart(scores) if fitted.tasks.labels else calibration_chart(tested)
    rows = zip(chart["promised"], chart["actual"], strict=True)
    return {**chart, "rows": [(f"{promised:.0%}", f"{actual:.0%}") for promised, actual in rows]}
