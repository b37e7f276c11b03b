"""Priors of counts, ranks and readings with outliers as named arrays and plain values, for files."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from metaprior.likelihoods import LIKELIHOODS, make_likelihood
from metaprior.likelihoods.base import Likelihood
from metaprior.prior.arrays import from_arrays, to_arrays
from metaprior.prior.fitted import Prior
from metaprior.schema import Mismatch, check_array, integer, optional, record, text
from metaprior.tasks.column_kinds import ColumnKinds, without_column

LARGEST = 1000.0  # parameter: cut points, and logarithms in the units of y


def response_arrays(prior: Prior) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a description of the prior as JSON values, and its arrays."""
    description, arrays = to_arrays(prior)
    likelihood = {**prior.likelihood.to_json(), "exposure": prior.exposure}
    return {**description, "likelihood": likelihood}, {**arrays, "parameters": prior.parameters}


def read_likelihood(
    stored: Any, name: str, input_dim: int, kinds: ColumnKinds | None = None
) -> tuple[Likelihood, int | None]:
    """Return a stored likelihood, and the column of its exposure; raise `Mismatch` if they do not fit."""
    named = record({"name": text, "exposure": optional(integer(0)), **LIKELIHOODS[name].stored_fields})
    if not isinstance(stored, dict) or stored.get("name") != name:
        raise Mismatch(f"model.likelihood must be that of likelihood {name!r}")
    named(stored, "model.likelihood")
    exposure = stored["exposure"]
    likelihood = make_likelihood(**{field: value for field, value in stored.items() if field != "exposure"})
    if exposure is not None and (exposure >= input_dim or not likelihood.takes_exposure):
        raise Mismatch("model.likelihood.exposure must be an input column of counts")
    if kinds is not None and exposure is not None and (kinds.levels[exposure] or exposure in kinds.covariates):
        raise Mismatch("model.likelihood.exposure must be a column of numbers, and no covariate")
    return likelihood, exposure


def from_response_arrays(
    description: Any,
    arrays: Mapping[str, np.ndarray],
    input_dim: int,
    recorded: Mapping[str, Any] | None,
    name: str,
    kinds: ColumnKinds | None = None,
) -> Prior:
    """Make a prior from what `response_arrays` returned; raise `Mismatch` if it does not fit."""
    stored = description.get("likelihood") if isinstance(description, dict) else None
    likelihood, exposure = read_likelihood(stored, name, input_dim, kinds)
    n_inputs, of_inputs = input_dim - (exposure is not None), without_column(kinds, exposure)
    prior = from_arrays(description, arrays, n_inputs, recorded, of_inputs, likelihood.n_parameters)
    if len(prior.scales.factors) != 1:
        raise Mismatch("model.members with sites must have one scale")
    shape = (likelihood.n_parameters,)
    parameters = check_array("parameters", arrays.get("parameters"), shape, LARGEST)
    return replace(prior, likelihood=likelihood, parameters=parameters, exposure=exposure)
