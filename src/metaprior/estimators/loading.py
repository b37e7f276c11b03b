"""Reading saved priors."""

import os
from typing import Any

from metaprior.estimators import persistence
from metaprior.estimators.base import FITTED_NUMBERS, FITTED_TRACES
from metaprior.estimators.classifier import MetaGPClassifier
from metaprior.estimators.regressor import MetaGPRegressor
from metaprior.files import InvalidFile

KINDS = {kind.__name__: kind for kind in (MetaGPRegressor, MetaGPClassifier)}


def load(
    path: str | os.PathLike, *, mean: Any = None, kernel: Any = None, encoder: Any = None
) -> MetaGPRegressor | MetaGPClassifier:
    """Read a saved prior. An own mean, kernel or encoder is passed again; its parameters come from the file."""
    header, tensors = persistence.read_prior(path, tensors=FITTED_TRACES, numbers=FITTED_NUMBERS)
    if header["kind"] not in KINDS:
        raise InvalidFile(f"{path} holds a {header['kind']!r}, which this version does not know.")
    kind = KINDS[header["kind"]]
    own = {"mean": mean, "kernel": kernel, "encoder": encoder}
    meta = kind(**persistence.decode_parameters(path, header, kind._get_param_names(), own))
    meta._restore(path, header, tensors)
    return meta
