"""The commands and the Python that do what the page does, on the same files, with the same result."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from metaprior.likelihoods import LIKELIHOODS

Role = Annotated[list[str], msgspec.Meta(min_length=1, max_length=100)]


class FitRequest(msgspec.Struct):
    """What the page asks of a fit."""

    task: Role
    x: Role
    y: str
    environment: str | None = None
    target: str | None = None
    kind: Literal["auto", "regression", "classification"] = "auto"
    likelihood: Literal[tuple(LIKELIHOODS)] = "gaussian"  # type: ignore[valid-type]
    exposure: str | None = None
    covariates: Annotated[list[str], msgspec.Meta(max_length=100)] = []
    drop_missing: bool = False
    drop_duplicates: bool = False


class ReportRequest(msgspec.Struct):
    """What the page asks of a report."""

    without_data: bool = False


def fit_arguments(
    table: str | Path, how: dict[str, Any], settings: dict[str, Any], out: str | Path, alpha: float | None = None
) -> list[str]:
    """Return the arguments of `metaprior fit` for the choices made on the page; `how` is how a CSV file is written."""
    arguments = [str(table)]
    for name in ("task", "x"):
        arguments += [f"--{name}={column}" for column in settings[name]]
    arguments.append(f"--y={settings['y']}")
    for name in ("environment", "target"):
        arguments += [f"--{name}={settings[name]}"] if settings.get(name) else []
    arguments += [f"--task-covariates={column}" for column in settings.get("covariates") or ()]
    usual = {"kind": "auto", "likelihood": "gaussian", "exposure": None}
    chosen = {name: settings.get(name) or value for name, value in usual.items()}
    arguments += [f"--{name}={value}" for name, value in chosen.items() if value != usual[name]]
    arguments += [f"--{name.replace('_', '-')}" for name in ("drop_missing", "drop_duplicates") if settings.get(name)]
    arguments += format_arguments(how)
    arguments += [] if alpha is None else [f"--alpha={alpha!r}"]
    return [*arguments, f"--out={out}"]


def format_arguments(how: dict[str, Any]) -> list[str]:
    """Return the options that say how a CSV file is written, where it is not the usual way."""
    usual = {"sep": None, "decimal": ".", "encoding": "utf-8"}
    return [f"--{name}={how[name]}" for name in usual if how.get(name) not in (usual[name], None)]


def command_lines(fit: Sequence[str] | None, prior: str, coverage: float, stored: dict[str, Any] | None = None) -> str:
    """Return the command lines that fit the prior, if it was fitted on the page, and predict as the page does.

    `stored` is how the table of the fit was written; the page's downloads are written in the usual way.
    """
    lines = [f"metaprior fit {shlex.join(fit)}"] if fit is not None else []
    readings = "readings.csv predictions.csv"  # the page's download of predictions has the inputs to predict at
    predict = f"metaprior predict {shlex.quote(prior)} {readings} --one-task --coverage {coverage:g} --out again.csv"
    predict += " --sep , --decimal . --encoding utf-8" if format_arguments(stored or {}) else ""
    return "\n".join([*lines, predict])


def python_code(
    table: str | None,
    settings: dict[str, Any] | None,
    how: dict[str, Any],
    prior: str,
    columns: dict[str, Any],
    coverage: float,
    labels: bool,
    alpha: float | None,
) -> str:
    """Return a program that fits the prior, if it was fitted on the page, and predicts as the page does."""
    kind = "MetaGPClassifier" if labels else "MetaGPRegressor"
    lines = ["from metaprior import load, predict_frame", ""]
    if settings is not None and table is not None:
        fitted = _fit_lines(table, settings, how, kind, alpha, prior)
        lines = [f"from metaprior import {kind}, load, predict_frame, tasks_from_frame", "", *fitted]
    names = f"x={_literal(list(columns['x']))}, y={_literal(columns['y'])}"
    lines += [
        f"meta = load({_literal(prior)})",
        f'frame = predict_frame(meta, "readings.csv", "predictions.csv", {names}, coverage={coverage:g})',
        "print(frame)",
    ]
    return "\n".join(lines) + "\n"


def _fit_lines(
    table: str, settings: dict[str, Any], how: dict[str, Any], kind: str, alpha: float | None, prior: str
) -> list[str]:
    """Return the lines that read the table, fit and save."""
    names = {"task": _one_or_list(settings["task"]), "x": _one_or_list(inputs_of(settings)), "y": settings["y"]}
    names |= {"covariates": list(settings["covariates"])} if settings.get("covariates") else {}
    names |= {"environment": settings["environment"]} if settings.get("environment") else {}
    names |= {name: True for name in ("drop_missing", "drop_duplicates") if settings.get(name)}
    arguments = ", ".join(f"{name}={_literal(value)}" for name, value in names.items())
    read, source = [], _literal(table)
    if format_arguments(how):
        given = {"sep": how["sep"] or ",", "decimal": how["decimal"], "encoding": how["encoding"]}
        naming = dict.fromkeys([*settings["task"], *filter(None, [settings.get("environment")])], "str")
        options = ", ".join(f"{name}={_literal(value)}" for name, value in {**given, "dtype": naming}.items())
        read, source = ["import pandas", "", f"table = pandas.read_csv({_literal(table)}, {options})"], "table"
    given = "target_tasks=tasks"
    weight = "alpha=0.0, "
    if settings.get("target"):
        given = f"tasks, target={_literal(settings['target'])}"
        weight = "" if alpha is None else f"alpha={alpha!r}, "
    return [
        *read,
        f"tasks = tasks_from_frame({source}, {arguments})",
        f"{kind}({weight}{_noise(settings)}random_state=0).fit({given}).save({_literal(prior)})",
    ]


def inputs_of(settings: dict[str, Any]) -> list[str]:
    """Return the columns of X but for covariates: the inputs, and the exposure after them."""
    exposure = settings.get("exposure")
    return [*settings["x"], *([exposure] if exposure and exposure not in settings["x"] else [])]


def _noise(settings: dict[str, Any]) -> str:
    """Return the arguments of an estimator that say what y and the columns of X are."""
    given: dict[str, Any] = {}
    if settings.get("likelihood", "gaussian") != "gaussian":
        given["likelihood"] = settings["likelihood"]
    if settings.get("exposure"):
        given["exposure"] = inputs_of(settings).index(settings["exposure"])
    if settings.get("covariates"):
        given["covariates"] = list(settings["covariates"])
    return "".join(f"{name}={_literal(value)}, " for name, value in given.items())


def _one_or_list(names: Sequence[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


def _literal(value: Any) -> str:
    """Return a value as Python writes it, with double quotes."""
    is_text = isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    return json.dumps(value, ensure_ascii=False) if is_text else repr(value)
