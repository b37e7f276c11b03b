"""Public objects are documented in numpydoc form, and the examples in docstrings run."""

import doctest
import importlib
import inspect
from pathlib import Path

import jax
import pytest

import metaprior
from metaprior import datasets, plots, wfem

SOURCE = Path(metaprior.__file__).parent
MODULES = sorted(
    ".".join(("metaprior", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text()
)
ROOMS = (metaprior, plots, datasets, wfem)
PUBLIC = {f"{room.__name__}.{name}": getattr(room, name) for room in ROOMS for name in room.__all__}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore")
def test_examples_run(name):
    if name.startswith("metaprior.botorch"):
        pytest.importorskip("botorch")
    with jax.numpy_rank_promotion("allow"):
        failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_have_numpydoc_sections(name):
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    assert "Parameters\n----------" in text
    assert name.endswith("store_tasks") or "plot_" in name or "Returns\n-------" in text


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_classes_that_users_construct_list_their_parameters(name):
    kind = CLASSES[name]
    text = inspect.getdoc(kind) or ""
    assert len(text.splitlines()[0]) <= 120
    constructed = not issubclass(kind, Exception) and not name.startswith("metaprior.Adapted")
    if constructed and "from_arrays" not in vars(kind) and len(inspect.signature(kind).parameters):
        assert "Parameters\n----------" in text or "Attributes\n----------" in text, name
