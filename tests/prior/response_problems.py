"""Likelihoods with parameters, and what is observed under them."""

import numpy as np

from metaprior.predict.response_mixtures import make_response

PARAMETERS = {
    "poisson": np.zeros(0),
    "negative-binomial": np.array([1.2]),
    "student-t": np.log([0.4, 4.0]),
    "ordinal": np.array([-1.0, 0.2, -0.3, 0.1]),
}
NAMES = tuple(PARAMETERS)


def response_of(name):
    return make_response(name, 5, 0) if name == "ordinal" else make_response(name)
