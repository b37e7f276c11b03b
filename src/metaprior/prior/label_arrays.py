"""Priors of labels as named arrays and plain values, for files."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from metaprior.prior.arrays import read_terms, term_arrays
from metaprior.prior.label_prior import LabelPrior
from metaprior.schema import MAX_LEARNED, Mismatch, check_array, number, record
from metaprior.tasks.column_kinds import ColumnKinds

CALIBRATION = record({"factor": number(1e-6, 1e6), "ratio": number(0.0, 1e6), "shrink": number(1e-3, 1.0)})


def label_arrays(prior: LabelPrior) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a description of the prior as JSON values, and its arrays."""
    description, arrays = term_arrays(prior.terms)
    calibration = {"factor": float(prior.factor), "ratio": float(prior.ratio), "shrink": float(prior.shrink)}
    return {**description, "labels": calibration}, {**arrays, "class_weights": prior.weights}


def from_label_arrays(
    description: Any,
    arrays: Mapping[str, np.ndarray],
    input_dim: int,
    recorded: Mapping[str, Any] | None,
    n_shared: int | None,
    kinds: ColumnKinds | None = None,
) -> LabelPrior:
    """Make a prior from what `label_arrays` returned; raise `Mismatch` if it does not fit.

    `n_shared` is the number of classes that all tasks share, None if each has its own.
    """
    terms = read_terms(description, arrays, input_dim, recorded, kinds)
    CALIBRATION(description.get("labels"), "model.members.labels")
    if terms.curve is not None or terms.shape_root is not None:
        raise Mismatch("model.members of labels must have neither a deformation nor shapes")
    weights = arrays.get("class_weights")
    rows = 0 if weights is None or not weights.shape or not len(weights) else _n_rules(n_shared)
    found = check_array("class_weights", weights, (rows, len(terms.weights)), MAX_LEARNED)
    return LabelPrior(terms, found, **{name: float(value) for name, value in description["labels"].items()})


def _n_rules(n_shared: int | None) -> int:
    """Return the number of rules: one of every class, or one that tells two apart."""
    if n_shared is None:
        raise Mismatch("class_weights must be empty if tasks do not share their classes")
    return 1 if n_shared == 2 else n_shared
