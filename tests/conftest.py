"""Every test runs with shape checking on, strict promotion, and 64-bit floats available only where asked for."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

from jaxtyping import install_import_hook

install_import_hook("metaprior", "typechecker.typechecker")

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("ci")


@pytest.fixture
def x64():
    """Run one test in double precision."""
    with jax.enable_x64(True):
        yield
