"""The report of a fit as one HTML file, which needs no other file and no network."""

import base64
import hashlib
import json
import shlex
import time
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from metaprior_app.report_contents import contents, without_data
from metaprior_app.report_data import describe_data, sample_training, task_charts
from metaprior_app.report_examples import calibration_chart, examples, reliability_chart
from metaprior_app.report_sections import sections
from metaprior_app.report_tests import Tested, held_out_tasks
from metaprior.cli.info import conformal_words
from metaprior.cli.training_data import Fit
from metaprior.files import nan_to_none
from metaprior.metrics import Scores
from metaprior.search.report import TransferReport

DIGITS = 4  # of gains and weights


def fit_report(fitted: Fit, notes: Sequence[dict[str, str]] = (), with_data: bool = True) -> bytes:
    """Return the page on a fit. Without held-out tasks the prior is fitted again, without some tasks each time."""
    return page(report_facts(fitted, notes, with_data)).encode("utf-8", "replace")  # of halves of surrogate pairs


def report_facts(fitted: Fit, notes: Sequence[dict[str, str]] = (), with_data: bool = True) -> dict[str, Any]:
    """Return all that the page says and draws, as JSON values."""
    started = time.monotonic()
    meta, tasks = fitted.meta, fitted.tasks
    sample = sample_training(tasks, fitted.seed)
    tested = held_out_tasks(fitted, sample)
    facts = {
        "source": "a pipe" if fitted.is_pipe else str(tasks.source).rstrip("/").rpartition("/")[2],
        "labels": tasks.labels,
        "outputs": meta.transfer_report().outputs,
        "target": fitted.target,
        "likelihood": None if tasks.labels else meta.likelihood_,
        "data": {
            **describe_data(tasks, sample, fitted.target, meta),
            "charts": task_charts(tasks, sample, fitted.target, meta),
        },
        "transfer": _transfer(meta.transfer_report()),
        "prior": {"members": len(meta.model_.members), "family": meta.family_},
        "held_out": _held_out(fitted, tested),
        "conformal": _conformal_facts(meta),
        "settings": _settings(meta),
        "notes": [note["message"] for note in notes],
        "command": shlex.join(_typed(fitted)),
        "is_pipe": fitted.is_pipe,
        "seconds": meta.training_["seconds"],
        "versions": meta.training_["versions"],
        "with_data": True,
    }
    facts["contains"] = contents(facts, fitted.held_out is not None)
    facts = facts if with_data else without_data(facts)
    facts["report_seconds"] = round(time.monotonic() - started, 1)
    return nan_to_none(facts)


def _transfer(report: TransferReport) -> dict[str, Any]:
    """Return the candidates that were compared, in words and as a chart."""
    one = report.n_source_tasks == 0 or len(report.names) == 1
    values, errors, what = (
        report.gain,
        report.gain_standard_error,
        f"gain over target-only in the robust score, {report.unit}",
    )
    if values is None:
        values, errors, what = report.score, report.standard_error, f"robust score, {report.unit}"
    labels = [report.describe(i) for i in range(len(report.weight))]
    nothing = np.full(len(labels), np.nan)
    numbers = (nothing if each is None else each for each in (values, errors, report.weight))
    columns = (labels, *(np.round(each, DIGITS).tolist() for each in numbers))
    rows = [dict(zip(("label", "value", "error", "weight"), row, strict=True)) for row in zip(*columns, strict=True)]
    chart = {"kind": "candidates", "title": f"{what}, of {len(rows)} settings", "rows": rows, "label": what}
    return {
        "words": report.plain_words,
        "verdict": "" if one else report.verdict,
        "certificate": "" if report.certificate is None else f"Held out, with the source: {report.certificate.words}.",
        "rows": [] if one else [list(row) for row in report.rows()],
        "shares": {} if one else dict(zip(report.names, report.weight @ report.environment_weights, strict=True)),
        "families": report.families or {},
        "family_words": report.family_words,
        "score_words": "" if report.score is None or one else report.score_words,
        "chart": None if one or values is None else chart,
    }


def _held_out(fitted: Fit, tested: Tested) -> dict[str, Any]:
    """Return the scores on held-out tasks, their calibration, and examples."""
    if not tested.groups:
        return {"how": tested.how, "scores": {}, "gains": [], "chart": None, "examples": []}
    scores = tested.scores["metaprior"]
    chart = reliability_chart(scores) if fitted.tasks.labels else calibration_chart(tested)
    return {
        "how": tested.how,
        "tasks": scores.n_tasks,
        "scores": {who: _means(score) for who, score in tested.scores.items()},
        "gains": [*tested.compared.sentences, *filter(None, [tested.compared.missing])],
        "chart": chart,
        "examples": examples(fitted, tested),
    }


def _conformal_facts(meta: Any) -> str:
    """Return what is proven of conformal intervals, if the prior has them."""
    conformal = meta.model_.conformal
    if conformal is None:
        return ""
    words = conformal_words(conformal.n_tasks, len(conformal.folds), conformal.rule)
    return f"The prior has conformal intervals: {words}. Charts show the model's own band."


def _means(scores: Scores) -> dict[str, Any]:
    pairs = {name: [scores[name], scores[f"{name}_se"]] for name in scores.per_task}
    return {**pairs, "calibration_error": [scores.calibration_error, None]}


def _settings(meta: Any) -> list[list[Any]]:
    """Return name, value and default of every argument that matters, those that differ from the default first."""
    defaults = type(meta)().get_params(deep=False)
    rows = [[name, repr(value), repr(defaults[name])] for name, value in meta.parameters_.items() if name != "progress"]
    return sorted(rows, key=lambda row: row[1] == row[2])


def _typed(fitted: Fit) -> list[str]:
    """Return the words of the command line; a table from a pipe is standard input."""
    words = list(fitted.command)
    if fitted.is_pipe:
        words[2] = "-"
    return words


def page(facts: dict[str, Any]) -> str:
    """Return the HTML of a report. Scripts and styles other than its own are refused, and so is any request."""
    style, script = _static("style.css"), f"{_static('charts.js')}\n{_static('report.js')}"
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'"
    title = f"metaprior: a prior fitted to {facts['source']}"
    body, charts = sections(facts)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>\n</head>\n<body>",
            body,
            f'<script type="application/json" id="charts">{_as_json(charts)}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _static(name: str) -> str:
    return resources.files("metaprior_app").joinpath("static", name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _as_json(value: Any) -> str:
    """Return JSON that ends no script element, whatever text it holds; characters beyond ASCII are escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
