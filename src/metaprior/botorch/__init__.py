"""Bayesian optimization with BoTorch: a meta-learned prior as a BoTorch model, for acquisition functions.

It needs BoTorch: `pip install 'metaprior[botorch]'`.
"""

from importlib.util import find_spec

if find_spec("botorch") is None:
    raise ImportError("metaprior.botorch needs BoTorch, which is not installed: run pip install 'metaprior[botorch]'.")

from metaprior.botorch.surrogate import MetaPriorModel

__all__ = ["MetaPriorModel"]
