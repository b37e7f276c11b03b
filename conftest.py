"""Every test runs with shape checking on, strict promotion, and 64-bit floats available only where asked for."""

import atexit
import gc
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Workers share few cores. Threads of OpenMP that wait for each other made a test of seconds take minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Most of the suite's time is compiling. Programs are small here, so compile them quickly rather than well.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if version("jaxlib").startswith("0.10."):  # XLA aborts at a flag that it does not know, as from 0.11 on
    QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK)
gc.set_threshold(200_000)  # tracing makes many objects, hardly any of them garbage
# Workers and the processes that tests start share what they have compiled, for as long as this run lasts.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="metaprior-programs-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA prints pages about tuning flags of this very machine
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

from jaxtyping import install_import_hook

# Where annotations have shapes. The other rooms are NumPy without them, and checking their types, which pyright does,
# would take as long as what they compute.
install_import_hook(["metaprior.wfem", "metaprior_studies"], "typechecker.typechecker")

import jax
import jaxtyping
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("ci")
pytest_plugins = ["counters"]  # tests/attack/counters.py


@pytest.fixture
def x64():
    """Run one test in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def as_installed():
    """Type checks off, as they are for users: a mistake has to be caught by the package itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory():
    """Forget compiled programs between files once they fill 2 GB: two workers share a small machine."""
    yield
    statm = Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 2 * 2**30:
        jax.clear_caches()
        gc.collect()
