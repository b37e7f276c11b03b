"""The commands and the Python that do what the page does, on the same files, with the same result."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from metaprior.likelihoods import LIKELIHOODS
from metaprior.tables.columns import Columns, as_columns
from metaprior.tables.reading import CsvFormat

Role = Annotated[list[str], msgspec.Meta(min_length=1, max_length=100)]
PRIOR_NAME = "prior.safetensors"  # of the download


# Options of `metaprior fit` that take several choices of the page; others have the names of theirs.
_OPTIONS = {"drop_missing": "--drop=missing", "drop_duplicates": "--drop=duplicates", "exposure": "--set=exposure="}
_OPTIONS |= {name: f"--csv={name}=" for name in CsvFormat._fields}


class FitRequest(msgspec.Struct):
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

    @property
    def inputs(self) -> list[str]:
        """The columns of X but for covariates: the inputs, and the exposure after them."""
        return [*self.x, *([self.exposure] if self.exposure and self.exposure not in self.x else [])]

    @property
    def columns(self) -> Columns:
        return as_columns(
            task=self.task, x=self.inputs, y=self.y, environment=self.environment, covariates=self.covariates or None
        )


class ReportRequest(msgspec.Struct):
    without_data: bool = False


def fit_arguments(
    table: str | Path, how: CsvFormat, asked: FitRequest, out: str | Path, alpha: float | None = None
) -> list[str]:
    """Return the arguments of `metaprior fit` for the choices made on the page; `how` is how a CSV file is written."""
    chosen = {**msgspec.structs.asdict(asked), **how._asdict()}
    usual = {**msgspec.structs.asdict(FitRequest([], [], "")), **CsvFormat()._asdict()}
    arguments = [str(table)]
    for name, value in chosen.items():
        if value != usual[name]:
            values = value if isinstance(value, list) else [value]
            arguments += [f"{_OPTIONS.get(name, f'--{name}=')}{'' if value is True else each}" for each in values]
    return [*arguments, *([] if alpha is None else [f"--alpha={alpha!r}"]), f"--out={out}"]


def command_lines(fit: list[str] | None, coverage: float, stored: dict[str, Any]) -> str:
    """Return the command lines that fit the prior, if it was fitted on the page, and predict as the page does.

    `stored` is how the table of the fit was written; the page's downloads are written in the usual way.
    """
    readings = "readings.csv predictions.csv"  # the page's download of predictions has the inputs to predict at
    predict = f"metaprior predict {PRIOR_NAME} {readings} --one-task --coverage {coverage:g} --out again.csv"
    if CsvFormat(**stored) != CsvFormat():
        predict += " --csv sep=, decimal=. encoding=utf-8"
    return "\n".join([*([f"metaprior fit {shlex.join(fit)}"] if fit is not None else []), predict])


def python_code(columns: dict[str, Any], coverage: float, fit: list[str]) -> str:
    """Return a program that predicts as the page does, after the lines that fit the prior, if there are any."""
    names = _arguments({"x": list(columns["x"]), "y": columns["y"], "coverage": coverage})
    lines = [
        *(fit or ["from metaprior import load, predict_frame", ""]),
        f"meta = load({_literal(PRIOR_NAME)})",
        f'frame = predict_frame(meta, "readings.csv", "predictions.csv", {names})',
        "print(frame)",
    ]
    return "\n".join(lines) + "\n"


def fit_code(table: str, how: CsvFormat, asked: FitRequest, labels: bool, alpha: float | None) -> list[str]:
    columns: dict[str, Any] = {"task": asked.task, "x": asked.inputs, "y": asked.y}
    for name in ("covariates", "environment", "drop_missing", "drop_duplicates"):
        columns |= {name: getattr(asked, name)} if getattr(asked, name) else {}
    read, source = [], _literal(table)
    if how != CsvFormat():
        naming = dict.fromkeys([*asked.task, *([asked.environment] if asked.environment else [])], "str")
        options = _arguments({**how._asdict(), "sep": how.sep or ",", "dtype": naming})
        read, source = ["import pandas", "", f"table = pandas.read_csv({_literal(table)}, {options})"], "table"
    parameters: dict[str, Any] = {"alpha": alpha} if asked.target else {"alpha": 0.0}
    parameters["likelihood"] = None if asked.likelihood == "gaussian" else asked.likelihood
    parameters["exposure"] = asked.inputs.index(asked.exposure) if asked.exposure else None
    parameters |= {"covariates": asked.covariates or None, "random_state": 0}
    given = _arguments({name: value for name, value in parameters.items() if value is not None})
    kind = "MetaGPClassifier" if labels else "MetaGPRegressor"
    tasks = f"tasks, target={_literal(asked.target)}" if asked.target else "target_tasks=tasks"
    return [
        f"from metaprior import {kind}, load, predict_frame, tasks_from_frame",
        "",
        *read,
        f"tasks = tasks_from_frame({source}, {_arguments(columns)})",
        f"{kind}({given}).fit({tasks}).save({_literal(PRIOR_NAME)})",
    ]


def _arguments(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_literal(value)}" for name, value in given.items())


def _literal(value: Any) -> str:
    """Return a value as Python writes it, with double quotes; a list of one as its only element."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    is_text = isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    return json.dumps(value, ensure_ascii=False) if is_text else repr(value)
