"""Likelihoods with parameters, and what is observed under them."""

import numpy as np

from metaprior.likelihoods import make_likelihood

PARAMETERS = {
    "poisson": np.zeros(0),
    "negative-binomial": np.array([1.2]),
    "student-t": np.log([0.4, 4.0]),
    "ordinal": np.array([-1.0, 0.2, -0.3, 0.1]),
}
NAMES = tuple(PARAMETERS)


def likelihood_of(name):
    return make_likelihood(name).learned([np.arange(5.0)])
