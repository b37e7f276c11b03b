"""Tasks exported as one Python file that predicts with NumPy alone: code to read, then numbers. No pickle, no eval."""

import ast
import base64
import keyword
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from metaprior import linalg
from metaprior.files import package_versions, write_atomically
from metaprior.likelihoods import gaussian, softmax
from metaprior.predict import exported
from metaprior.predict.batches import Posteriors
from metaprior.prior import label_prior, process
from metaprior.prior.fitted import Prior
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.process import Process
from metaprior.tasks import categories
from metaprior.tasks.categories import plain
from metaprior.tasks.columns import Features

WIDTH = 110  # characters of a line of numbers
MOST_WRITTEN = 8  # numbers of an array that are written out; others are 64-bit numbers in base 64
UNSEEN = "(unseen level)"  # of a context, in a file
MOST_IN_LINE = 4  # entries of a list
HEAD = '''"""A task of a meta-learned Gaussian-process prior, exported by metaprior {version}. It needs NumPy alone.

    import {module}

    {use}
    other = {module}.adapt(X, y)  # another task of the same prior, with the same methods
    more = {module}.task.update(X, y)  # this task with more {outputs}

This file holds the {outputs} of the task, in X_CONTEXT and Y_CONTEXT, and the prior, in PRIORS.
"""
'''
READINGS = """mean, std = {module}.predict(X, return_std=True)
    lower, upper = {module}.interval(X, coverage=0.9)"""
LABELS = "p = {module}.predict_proba(X)  # columns in the order of {module}.CLASSES"
USES = {"readings": READINGS, "labels": LABELS}
NUMPY = "import numpy as np"
# Modules that exported files contain, or some of their names, or all but some.
LINEAR_ALGEBRA = (linalg, ("ROUNDING", "JITTERS", "stable_cholesky", "_jittered_cholesky", "log_sum_exp"))
QUANTILES = (gaussian, ("QUANTILE_TOLERANCE", "QUANTILE_MAXIMUM_ITERATIONS", "mixture_moments", "normal_quantile"))
COLUMNS = (categories, ("ColumnKinds", "_is_level"))
LABEL_PROCESS = (
    label_prior,
    ("MAX_COVARIANCE", "FAR", "LabelPosterior", "Latent", "LabelProcess", "within_reach", "calibrated"),
)
COMMON_CODE = (LINEAR_ALGEBRA, COLUMNS, process)
READINGS_CODE = (*COMMON_CODE, QUANTILES, (exported, ("-LabeledTask", "-as_labels")))
LABELS_CODE = (*COMMON_CODE, softmax, LABEL_PROCESS, (exported, ("-TaskOfReadings",)))
ADAPT_READINGS = '''def adapt(X, y):
    """Condition the prior on the readings of another task."""
    return TaskOfReadings(as_inputs(X), y)'''
ADAPT_LABELS = '''def adapt(X, y, classes=None):
    """Condition the prior on the labels of another task, with the same classes or others that are given."""
    return LabeledTask(as_inputs(X), y, classes)'''
METHODS = {"readings": ("predict", "interval", "quantile"), "labels": ("predict", "predict_proba", "predict_log_proba")}


def write_module(
    path: str | os.PathLike, posteriors: Posteriors, features: Features, classes: np.ndarray | None = None
) -> None:
    """Write one task as a Python module."""
    module = _module_name(path)
    outputs = "readings" if classes is None else "labels"
    code, constants = _content(posteriors, features, classes)
    use = USES[outputs].format(module=module)
    head = HEAD.format(version=package_versions()["metaprior"], module=module, use=use, outputs=outputs)
    data = "\n".join(f"{name} = {_literal(value)}" for name, value in constants.items())
    methods = METHODS[outputs]
    tail = f"task = adapt(X_CONTEXT, Y_CONTEXT)\n{', '.join(methods)} = {', '.join(f'task.{name}' for name in methods)}"
    write_atomically(path, f"{head}\n{code}\n\n# The prior and the task.\n{data}\n{tail}\n".encode())


def _module_name(path: str | os.PathLike) -> str:
    """Return the name of the module that a path has; raise if Python could not import it."""
    name = Path(path).name
    if not (name.endswith(".py") and name[:-3].isidentifier()):
        raise ValueError(f"path must be that of a Python module, such as 'patient.py'; got {os.fspath(path)!r}.")
    installed = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    taken = {"numpy", "metaprior", *sys.stdlib_module_names, *keyword.kwlist}  # NumPy imports most of these
    if name[:-3] in taken or PathFinder.find_spec(name[:-3], installed) is not None:
        hidden = "Python could not import it, or would import it in place of a module or package of that name"
        raise ValueError(f"path cannot be named {name!r}: {hidden}. Name it otherwise, such as 'patient.py'.")
    return name[:-3]


def _content(posteriors: Posteriors, features: Features, classes: np.ndarray | None) -> tuple[str, dict[str, Any]]:
    """Return the code of the members, and the constants that it reads."""
    model = posteriors.model
    members = [member for member in model.members if isinstance(member, Prior | LabelPrior)]
    if len(members) < len(model.members):
        raise ValueError(
            "Priors trained by gradients cannot be exported: they predict with JAX. Save the prior and load it with "
            "metaprior instead, or fit with the default settings."
        )
    weighted = zip(model.weights.tolist(), members, strict=True)
    constants: dict[str, Any] = {
        "COLUMNS": None if features.names is None else list(features.names),
        "RANGE": features.range,
        "LEVELS": _levels(features),
        "COVARIATES": list(features.categories.covariates),
        "PRIORS": [{"weight": weight, **_numbers(member)} for weight, member in weighted if weight > 0.0],
        "X_CONTEXT": _cells(posteriors.x.rows[:-1], features),
    }
    y = posteriors.y.rows[:-1]
    if classes is None:
        return code(*READINGS_CODE, adapt=ADAPT_READINGS), constants | {
            "Y_CONTEXT": y.tolist(),
            "SPREAD": float(model.spread),
        }
    constants |= {"CLASSES": classes.tolist(), "Y_CONTEXT": classes[y.astype(int)].tolist()}
    return code(*LABELS_CODE, adapt=ADAPT_LABELS), constants


def _numbers(member: Prior | LabelPrior) -> dict[str, Any]:
    """Return what the code reads of a member: numbers, arrays, and dicts of them."""
    found: dict[str, Any] = {}
    for name in ("x_mean", "x_std", "shares", "x_map"):
        value = getattr(member.scaling, name)
        found |= {} if value is None else {name: value}
    if isinstance(member, LabelPrior):
        process, calibration = member.process.process, ("factor", "ratio", "shrink")
        return {**found, "process": _given(process), **{name: float(getattr(member, name)) for name in calibration}}
    units = {name: float(getattr(member.scaling, name)) for name in ("y_mean", "y_std")}
    return {**found, **units, "process": _given(member.process), "factors": member.factors._asdict()}


def _given(process: Process) -> dict[str, Any]:
    """Return the fields of a process that are not at their defaults."""
    values, defaults = process._asdict(), Process._field_defaults
    return {name: value for name, value in values.items() if name not in defaults or value is not defaults[name]}


def code(*parts: "ModuleType | tuple[ModuleType, tuple[str, ...]]", adapt: str) -> str:
    """Return the code of modules as one, without their docstrings and imports from metaprior.

    Of a module with names only these are taken, or all but these if they begin with a minus.
    """
    plain_imports, members, bodies = set(), {}, []
    for part in parts:
        module, names = part if isinstance(part, tuple) else (part, ())
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        nodes, lines = ast.parse(text).body, text.splitlines()
        heads = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        body = "\n".join(_chosen(lines, nodes, heads[-1].end_lineno or 0, names)).strip()
        for node in heads:
            if isinstance(node, ast.Import):
                plain_imports.add(ast.unparse(node))
            elif not str(node.module).startswith(("metaprior", "scipy")):
                used = {alias.name for alias in node.names if re.search(rf"\b{alias.name}\b", body)}
                members.setdefault(node.module, set()).update(used)
        bodies.append(body)
    named = [
        f"from {module} import {', '.join(sorted(members[module]))}" for module in sorted(members) if members[module]
    ]
    others = sorted(plain_imports - {NUMPY})
    return "\n".join([*others, *named, "", NUMPY, "", "", "\n\n\n".join([*bodies, adapt])]) + "\n"


def _chosen(lines: list[str], nodes: list[ast.stmt], start: int, names: tuple[str, ...]) -> list[str]:
    """Return the lines of a module after its imports, of some names or without some."""
    without = {name[1:] for name in names if name.startswith("-")}
    places = {name: (first, last) for name, first, last in map(_place, nodes) if name}
    if without:
        cut = {i for name in without for i in range(*places[name])}
        return [line for i, line in enumerate(lines) if i >= start and i not in cut]
    if not names:
        return lines[start:]
    return [line for name in names for line in [*lines[slice(*places[name])], "", ""]]


def _place(node: ast.stmt) -> tuple[str, int, int]:
    """Return the name that a statement defines, and its lines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        return node.name, first - 1, node.end_lineno or 0
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return (target.id if isinstance(target, ast.Name) else ""), node.lineno - 1, node.end_lineno or 0


def _levels(features: Features) -> list[list[Any] | None] | None:
    """Return the levels of every column, None if all columns are numbers."""
    levels = features.categories.levels
    return (
        None if features.are_numbers else [list(levels[i]) if i in levels else None for i in range(features.count or 0)]
    )


def _cells(x: np.ndarray, features: Features) -> list[list[Any]]:
    """Return inputs as users pass them: levels by name, and None for missing values."""
    rows = x.tolist()
    for column, known in features.categories.levels.items():
        levels = [*known, _unseen(known)]
        for row in rows:
            row[column] = None if np.isnan(row[column]) else levels[int(row[column])]
    return [[None if isinstance(cell, float) and np.isnan(cell) else cell for cell in row] for row in rows]


def _unseen(known: Iterable[Any]) -> str:
    """Return what a file calls an unseen level: not the name of a level."""
    name = UNSEEN
    while name in known:
        name = f"({name})"
    return name


def _literal(value: Any, indent: str = "") -> str:
    """Return a value as Python source: plain numbers, text, lists and dicts of them, and arrays."""
    inner, value = f"{indent}    ", plain(value)
    if isinstance(value, np.ndarray):
        return _array(value, inner, indent)
    if isinstance(value, dict):
        entries = "".join(f"{inner}{key!r}: {_literal(each, inner)},\n" for key, each in value.items())
        return f"{{\n{entries}{indent}}}"
    if isinstance(value, list) and (len(value) > MOST_IN_LINE or any(isinstance(each, dict) for each in value)):
        return "[\n" + "".join(f"{inner}{_literal(each, inner)},\n" for each in value) + f"{indent}]"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if type(value) not in (str, int, float, bool, type(None)) or value in (np.inf, -np.inf) or value != value:
        raise ValueError(f"A file can hold text, finite numbers and bools; got {value!r}, a {type(value).__name__}.")
    return repr(value)


def _array(array: np.ndarray, inner: str, indent: str) -> str:
    """Return an array as Python source."""
    numbers = np.asarray(array, np.float64)
    if numbers.size <= MOST_WRITTEN and numbers.size and np.isfinite(numbers).all():
        return f"np.array({numbers.tolist()!r})"
    encoded = base64.b64encode(numbers.astype("<f8").tobytes()).decode()
    lines = [encoded[first : first + WIDTH] for first in range(0, len(encoded), WIDTH)] or [""]
    text = "\n".join(f'{inner}"{line}"' for line in lines)
    return f"as_array(\n{text},\n{inner}{numbers.shape!r},\n{indent})"
