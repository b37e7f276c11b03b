"""The phases of a fit are as many as it announces at the beginning."""

import json

import numpy as np
import pytest

from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.wfem import HyperPrior, Training, WFEMRegressor


def make_tasks(n_tasks, n_inputs=1, outputs="numbers", covariates=False, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n_tasks):
        x = rng.uniform(-1, 1, (8, n_inputs))
        y = rng.normal() + x[:, 0] + 0.1 * rng.normal(size=8)
        if outputs == "counts":
            y = rng.poisson(np.exp(np.clip(y, -3, 3)))
        elif outputs == "ranks":
            y = np.clip(np.round(y), -1, 1) + 2
        elif outputs == "labels":
            y = np.where(y + rng.normal(size=8) > 0, "ill", "well")
        found.append((np.column_stack([x, np.full(8, rng.normal())]) if covariates else x, y))
    return found


SEVERAL = {"a": 5, "b": 5, "c": 6}
TWO = {"source": 5, "target": 6}
QUICK = {"kernel": "rbf", "mean": "constant", "alpha": "auto", "training": Training(n_steps=2)}
FITS = {
    "one environment": (MetaGPRegressor, {}, {"a": 6}),
    "one task": (MetaGPRegressor, {}, {"a": 1}),
    "one task of the target": (MetaGPRegressor, {}, {"a": 6, "b": 1}),
    "several sources": (MetaGPRegressor, {}, SEVERAL),
    "fixed alpha": (MetaGPRegressor, {"alpha": 0.5}, SEVERAL),
    "covariates": (MetaGPRegressor, {"covariates": [1]}, TWO),
    "features": (MetaGPRegressor, {}, {"source": 50, "target": 4}),
    "conformal": (MetaGPRegressor, {"conformal": True}, TWO),
    "counts with covariates": (MetaGPRegressor, {"likelihood": "poisson", "covariates": [1]}, TWO),
    "ranks": (MetaGPRegressor, {"likelihood": "ordinal"}, {"a": 8}),
    "labels": (MetaGPClassifier, {}, SEVERAL),
    "labels with covariates": (MetaGPClassifier, {"covariates": [1]}, TWO),
    "gradient": (WFEMRegressor, QUICK, TWO),
    "gradient, untested": (WFEMRegressor, QUICK, {"a": 6, "b": 1}),
    "gradient, hyper-prior": (WFEMRegressor, {**QUICK, "hyperprior": HyperPrior(std="auto")}, {"a": 10}),
    "gradient, given alpha": (WFEMRegressor, {**QUICK, "alpha": 0.5}, TWO),
}
# Longer fits, with phases that those above have one at a time.
LONG = {
    "conformal and covariates": (MetaGPRegressor, {"conformal": True, "covariates": [1]}, TWO),
    "conformal ranks": (MetaGPRegressor, {"likelihood": "ordinal", "conformal": True}, {"a": 8}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*FITS, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_phases_are_as_many_as_announced(monkeypatch, capsys, name):
    monkeypatch.setenv("METAPRIOR_PROGRESS", "json")
    kind, given, sizes = (FITS | LONG)[name]
    outputs = {"poisson": "counts", "ordinal": "ranks"}.get(given.get("likelihood"), "numbers")
    how = {"n_inputs": 2 if name == "features" else 1, "covariates": "covariates" in given}
    how["outputs"] = "labels" if kind is MetaGPClassifier else outputs
    tasks = {place: make_tasks(n, **how, seed=i) for i, (place, n) in enumerate(sizes.items())}
    kind(random_state=0, **given).fit(tasks, target=list(tasks)[-1])
    told = [json.loads(line)["progress"] for line in capsys.readouterr().err.splitlines()]
    assert {each["of"] for each in told} == {told[-1]["number"]}, [(each["phase"], each["of"]) for each in told]
    numbers = [each["number"] for each in told]
    assert sorted(numbers) == numbers
    assert set(numbers) == set(range(1, told[-1]["of"] + 1))
