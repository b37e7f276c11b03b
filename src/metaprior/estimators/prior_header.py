"""The header of a saved prior: what it must and may hold, checked before anything is built from it.

To save something new, add it to `OPTIONAL_HEADER` (JSON) or to `check_seen` (arrays); files without it keep loading.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from metaprior.likelihoods import LIKELIHOODS
from metaprior.schema import (
    MAX_NUMBER,
    OUTERMOST,
    Mismatch,
    Schema,
    any_number,
    anything,
    check_array,
    check_weights,
    choice,
    describe,
    finite,
    integer,
    mapping,
    number,
    optional,
    positive,
    record,
    sequence,
    text,
)
from metaprior.tasks.categories import MAX_LEVELS
from metaprior.tasks.task_digests import MAX_SLOW

MAX_MEMBERS = 10_000
MAX_BASELINES = 10
MAX_SIZE = 10**6  # of layers, points and the like, in descriptions of parts of a prior
MAX_LAYERS = 64
MAX_FOLDS = 1000
SALT_BYTES = 16
MAX_CLASSES = 100  # that all tasks may share, as in `tasks.labels`


def salt(value: Any, name: str) -> None:
    """Allow SALT_BYTES as hexadecimal digits."""
    if not (isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{2 * SALT_BYTES}}}", value)):
        raise Mismatch(f"{name} must be {2 * SALT_BYTES} hexadecimal digits")


def parameter(value: Any, name: str) -> None:
    """Allow what constructors take: text, numbers, lists of them, and descriptions of parts of a prior."""
    if isinstance(value, dict):
        if not ({"own", "mapping", "description"} & value.keys()) or ("description" in value and "fields" not in value):
            raise Mismatch(f"{name} must be a description with fields, a mapping or the name of a custom part")
        DESCRIBED(value, name)
    elif isinstance(value, list):
        PARAMETERS(value, name)
    elif value is not None:
        label(value, name)


def part(value: Any, name: str) -> None:
    """Allow the fields of a description, with limits on sizes and numbers of layers."""
    if isinstance(value, list):
        PARTS(value, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        SIZE(value, name)
    else:
        parameter(value, name)


def label(value: Any, name: str) -> None:
    """Allow text, numbers, true and false."""
    if not isinstance(value, str | bool):
        finite(value, name)


# Made once: recursive, and the tests compile a type check for every schema that is made.
PARAMETERS, PARTS, SIZE = sequence(parameter), sequence(part, most=MAX_LAYERS), integer(-MAX_SIZE, MAX_SIZE)
DESCRIBED = record({}, {"own": text, "mapping": mapping(parameter), "description": text, "fields": mapping(part)})


PER_CANDIDATE = ("temperature", "prior_std", "weight")
SCORES = ("score", "standard_error", "gain", "gain_standard_error")
COUNT, SCORE = integer(0), optional(any_number)
COLUMNS = {"task": sequence(text), "x": sequence(text), "y": optional(text), "environment": optional(text)}
COLUMNS |= {"covariates": sequence(text), "categorical": sequence(text)}
REPORT = record(
    {
        "names": sequence(text, least=1),
        "target": text,
        "n_target_tasks": COUNT,
        "environment_weights": sequence(sequence(number(0.0, 1.0 + 1e-6)), least=1),
        **dict.fromkeys(PER_CANDIDATE, sequence(number(0.0))),
        **dict.fromkeys(SCORES, optional(sequence(any_number))),
        "source_gain": optional(sequence(any_number, 2, 2)),
    },
    {
        "n_source_tasks": optional(COUNT),
        "environment_effect": optional(sequence(anything)),
        "families": optional(mapping(number(0.0, 1.0 + 1e-6))),
        "outputs": choice("labels", *sorted({kind.outputs for kind in LIKELIHOODS.values()})),
        "certificate": optional(sequence(COUNT, 3, 3)),
        "free_energy": optional(sequence(any_number)),
        "hint": text,
        "plain_gain": optional(sequence(any_number, 2, 2)),
        "covariates": optional(mapping(number(0.0, 1.0 + 1e-6))),
    },
)
TRAINING = record(
    {
        "environments": mapping(
            record({"tasks": COUNT, "samples": COUNT}, {"used_tasks": COUNT, "used_samples": COUNT})
        ),
        "target": text,
        "scaling": record(
            {"x_mean": sequence(number()), "x_std": sequence(positive), "y_mean": number(), "y_std": positive}
        ),
        "versions": mapping(text),
    },
    {
        "columns": optional(record({}, COLUMNS)),
        "csv": optional(record({}, dict.fromkeys(("sep", "decimal", "encoding"), optional(text)))),
        "data": optional(text),
        "covariates": mapping(number(0.0, 1.0 + 1e-6)),
        "held_out": optional(
            record(
                {"tasks": COUNT, "context": COUNT, "overall": mapping(mapping(SCORE))},
                {"gains": mapping(mapping(SCORE))},
            )
        ),
        **dict.fromkeys(
            ("final_loss", "particle_spread", "spread", "factor", "ratio", "shrink", "seconds"),
            optional(any_number),
        ),
        **dict.fromkeys(("particles", "parameters"), COUNT),
    },
)
FITTED: dict[str, Schema] = {"alpha_": number(-1e-6, 1.0 + 1e-6), "family_": text}
TRAINED: dict[str, Schema] = {  # by gradients
    "temperature_": positive,
    "dtype_": choice("float32", "float64"),
    "best_step_": COUNT,
}
HEADER: dict[str, Schema] = {
    "kind": text,
    "parameters": mapping(parameter),
    "fitted": record(FITTED, {"classes_": optional(sequence(label, 2, MAX_CLASSES)), **TRAINED}),
    "input_dim": integer(1, 2**31),
    "n_members": integer(1, MAX_MEMBERS),
    "report": REPORT,
    "training": TRAINING,
}
MODEL = mapping(anything)  # what reads the tensors makes of it
SPREAD = number(1e-6, 1e6)
FOLD = record({"n_members": integer(1, MAX_MEMBERS), "spread": SPREAD}, {"model": MODEL})
GUARANTEE = record(
    {
        "n_tasks": integer(2),
        "context": record({"kind": choice("random", "first"), "size": optional(COUNT)}),
        "folds": sequence(FOLD, 2, MAX_FOLDS),
    }
)
OPTIONAL_HEADER: dict[str, Schema] = {
    "spread": SPREAD,
    "model": MODEL,
    "feature_names": sequence(text, least=1),
    "recognized": record({"tasks": integer(0, MAX_SLOW), "of": COUNT, "salt": salt}),
    "guarantee": optional(GUARANTEE),
    "columns": record({"levels": sequence(optional(sequence(label, 2, MAX_LEVELS))), "covariates": sequence(COUNT)}),
    "baselines": sequence(record({"name": text, "model": anything}), most=MAX_BASELINES),
}

SCHEMA = record(HEADER, OPTIONAL_HEADER)


def check_header(header: Any) -> None:
    """Raise Mismatch if the header of a prior lacks something, or has a part of another kind or size."""
    SCHEMA(header, OUTERMOST)
    report, training, n_inputs = header["report"], header["training"], header["input_dim"]
    if len(header.get("feature_names", range(n_inputs))) != n_inputs:
        raise Mismatch(f"feature_names must have {n_inputs} items, one of each input column")
    if "columns" in header:
        _check_columns(header["columns"], n_inputs)
    names, n_candidates = report["names"], len(report["weight"])
    if report["target"] not in names:
        raise Mismatch("report.target must be one of report.names")
    if {len(row) for row in report["environment_weights"]} != {len(names)}:
        raise Mismatch(f"report.environment_weights must have {len(names)} columns")
    for name in ("environment_weights", *PER_CANDIDATE, *SCORES, "environment_effect", "free_energy"):
        if report.get(name) is not None and len(report[name]) != n_candidates:
            raise Mismatch(f"report.{name} must have {n_candidates} items, as many as report.weight")
    if report.get("certificate") is not None:
        helped, tied, n_tasks = report["certificate"]
        if not 0 < n_tasks >= helped + tied:
            raise Mismatch("report.certificate must be numbers of tasks helped, tied and in all")
    check_weights("report.weight", np.array(report["weight"], float), n_candidates)
    if training["target"] not in training["environments"]:
        raise Mismatch("training.target must be one of training.environments")
    if training.get("held_out"):
        _check_held_out(training["held_out"]["overall"], training["held_out"].get("gains", {}))


def _check_columns(columns: Mapping[str, Any], n_inputs: int) -> None:
    """Raise Mismatch unless levels are different and of all columns, and covariates are some of these columns."""
    levels, covariates = columns["levels"], columns["covariates"]
    if len(levels) != n_inputs:
        raise Mismatch(f"columns.levels must have {n_inputs} items, one of each input column")
    if any(len(set(each)) < len(each) for each in levels if each is not None):
        raise Mismatch("columns.levels must be different within a column")
    if sorted(set(covariates)) != covariates or len(covariates) >= n_inputs or max(covariates, default=0) >= n_inputs:
        raise Mismatch("columns.covariates must be numbers of input columns, the smallest first, and not all of them")


def _check_held_out(compared: Mapping[str, Mapping[str, Any]], gains: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise Mismatch unless the scores on held-out tasks are known ones, and the same of all that were compared."""
    from metaprior.metrics import LOSSES, MEANINGS  # scikit-learn takes a second, and most files do not need it

    names = compared.get("metaprior", {"": None}).keys()
    known = {name.removesuffix("_se") for name in names} <= MEANINGS.keys()
    if not known or any(score.keys() != names for score in compared.values()):
        raise Mismatch("training.held_out.overall must have the same known scores of metaprior and of all others")
    for who, gain in gains.items():
        losses = {name for name in LOSSES if name in names}
        if who not in compared or gain.keys() != losses | {f"{name}_se" for name in losses}:
            raise Mismatch("training.held_out.gains must have the losses of models in training.held_out.overall")
        if any(gain[name] is None for name in losses):
            raise Mismatch("training.held_out.gains must be numbers")


def check_environment_weights(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise Mismatch unless there is a weight of every environment."""
    check_weights("environment_weights_", arrays.get("environment_weights_"), len(header["report"]["names"]))


def check_seen(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise Mismatch if what the file tells of the tasks of the fit is there, but of another kind."""
    shape = (2, header["input_dim"])
    lower, upper = check_array("feature_range_", arrays.get("feature_range_"), shape, most=MAX_NUMBER)
    if (lower > upper).any():
        raise Mismatch("feature_range_ must have the smaller values first")
    digests = arrays.get("task_digests")
    if (digests is None) != ("recognized" not in header):
        raise Mismatch("task_digests and recognized must both be there, or neither")
    if digests is None:
        return
    n_digests, n_tasks = (header["recognized"][name] for name in ("tasks", "of"))
    if digests.dtype != np.uint64 or digests.shape != (n_digests,) or n_digests > n_tasks:
        raise Mismatch(
            f"task_digests must be uint64[{n_digests}], of {n_tasks} tasks; the file has {describe(digests)}"
        )
    if (digests[1:] <= digests[:-1]).any():
        raise Mismatch("task_digests must be different numbers, the smallest first")
