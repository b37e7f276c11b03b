"""Priors of counts, ranks and readings with outliers as named arrays and plain values, for files."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from metaprior.predict.rank_responses import Ordinal
from metaprior.predict.response_mixtures import make_response
from metaprior.predict.responses import Response
from metaprior.prior.arrays import from_arrays, to_arrays
from metaprior.prior.fitted import Prior
from metaprior.schema import Mismatch, check_array, integer, optional, record, text
from metaprior.tasks.column_kinds import ColumnKinds, without_column
from metaprior.tasks.outcome_rules import MAX_LEVELS

MAX_LEVEL = 2**31
LARGEST = 1000.0  # parameter: cut points, and logarithms in the units of y
RESPONSE = record(
    {"name": text, "exposure": optional(integer(0))},
    {"lowest": integer(-MAX_LEVEL, MAX_LEVEL), "n_levels": integer(2, MAX_LEVELS)},
)


def response_arrays(prior: Prior) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a description of the prior as JSON values, and its arrays."""
    description, arrays = to_arrays(prior)
    assert prior.response is not None
    response = describe_response(prior.response, prior.exposure)
    return {**description, "response": response}, {**arrays, "response_parameters": prior.parameters}


def describe_response(response: Response, exposure: int | None) -> dict[str, Any]:
    """Return a response and the column of its exposure as JSON values."""
    described: dict[str, Any] = {"name": response.name, "exposure": exposure}
    if isinstance(response, Ordinal):
        described |= {"lowest": response.lowest, "n_levels": response.n_levels}
    return described


def read_response(
    stored: Any, name: str, input_dim: int, kinds: ColumnKinds | None = None
) -> tuple[Response, int | None]:
    """Return the response of a likelihood, and the column of its exposure; raise `Mismatch` if they do not fit."""
    RESPONSE(stored, "model.response")
    if stored["name"] != name or ("n_levels" in stored) != (name == Ordinal.name):
        raise Mismatch(f"model.response must be that of likelihood {name!r}")
    exposure = stored["exposure"]
    response = make_response(name, stored.get("n_levels", 0), stored.get("lowest", 0))
    if exposure is not None and (exposure >= input_dim or not response.takes_exposure):
        raise Mismatch("model.response.exposure must be an input column of counts")
    if kinds is not None and exposure is not None and (kinds.levels[exposure] or exposure in kinds.covariates):
        raise Mismatch("model.response.exposure must be a column of numbers, and no covariate")
    return response, exposure


def from_response_arrays(
    description: Any,
    arrays: Mapping[str, np.ndarray],
    input_dim: int,
    recorded: Mapping[str, Any] | None,
    name: str,
    kinds: ColumnKinds | None = None,
) -> Prior:
    """Make a prior from what `response_arrays` returned; raise `Mismatch` if it does not fit."""
    stored = description.get("response") if isinstance(description, dict) else None
    response, exposure = read_response(stored, name, input_dim, kinds)
    n_inputs, of_inputs = input_dim - (exposure is not None), without_column(kinds, exposure)
    prior = from_arrays(description, arrays, n_inputs, recorded, of_inputs, response.n_parameters)
    if len(prior.scales.factors) != 1:
        raise Mismatch("model.members with a response must have one scale")
    shape = (response.n_parameters,)
    parameters = check_array("response_parameters", arrays.get("response_parameters"), shape, LARGEST)
    return replace(prior, response=response, parameters=parameters, exposure=exposure)
