"""Public names are imported when first used, so that a prior that needs no JAX does not wait for it."""

import importlib
import subprocess
import sys

import pytest

import metaprior

WITHOUT_JAX = """
import sys
import metaprior
metaprior.MetaGPRegressor, metaprior.load, metaprior.TransferReport, metaprior.open_tasks
from metaprior.tables import frames
import metaprior.cli, metaprior.cli.fit, metaprior.cli.predict, metaprior.cli.evaluate, metaprior.cli.info
import metaprior.cli.console, metaprior.plots, metaprior.estimators.comparison, metaprior.datasets
with metaprior.cli.console.report_errors():
    pass
x = [[0.0], [1.0], [2.0], [3.0]]
for kind, y in ((metaprior.MetaGPRegressor, [0.0, 1.0, 2.0, 2.5]), (metaprior.MetaGPClassifier, ["a", "b", "b", "c"])):
    kind(progress=False).fit(target_tasks=[(x, y)] * 3).adapt(x, y).predict(x)
print([name for name in ("jax", "jaxlib", "equinox", "optax", "tinygp", "jaxtyping") if name in sys.modules])
"""


def test_the_default_and_the_command_line_import_no_jax():
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_found_where_the_table_says():
    assert sorted(metaprior._MODULE_OF) == sorted(metaprior.__all__)
    assert set(metaprior.__all__) <= set(dir(metaprior))
    for name, module in metaprior._MODULE_OF.items():
        value = getattr(metaprior, name)
        assert value is getattr(importlib.import_module(module), name)
        assert value.__module__ == module


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'metaprior' has no attribute 'MetaGP'"):
        _ = metaprior.MetaGP  # type: ignore[attr-defined]
    assert not hasattr(metaprior, "nothing")
