"""Processes forked after a fit: the default predicts there, priors trained by gradients refuse instead of hanging."""

import os
import subprocess
import sys

import pytest

from metaprior import load
from metaprior.wfem import Training, WFEMClassifier, WFEMRegressor, checkpoint

TASKS = [([[0.0], [1.0], [2.0]], [0.0, 1.0, float(i)]) for i in range(4)]
LABELS = [(x, [0, 1, 1]) for x, _ in TASKS]
QUICK = {"alpha": 0.0, "kernel": "rbf", "mean": "constant", "training": Training(n_steps=0), "random_state": 0}

IN_A_CHILD = """
import os, signal, sys
{before}
child = os.fork()
if child == 0:
    signal.alarm(30)
    try:
        {inside}
    except BaseException as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""
FIT = """
import warnings
import numpy as np
{imported}
rng = np.random.default_rng(0)
tasks = [(x, x[:, 0] + rng.normal()) for x in rng.normal(size=(8, 5, 1))]
meta = {estimator}.fit(target_tasks=tasks)
many = [(x, y, x) for x, y in tasks] * 10  # enough of them for threads
expected = meta.predict_many(many)
warnings.simplefilter("ignore")  # JAX warns about the fork
"""
PREDICT = "print(np.array_equal(meta.predict_many(many), expected), flush=True)"


def said_in_a_child(before, inside):
    code = IN_A_CHILD.format(before=before, inside=inside)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_default_predicts_in_a_forked_process():
    before = FIT.format(
        imported="from metaprior import MetaGPRegressor", estimator="MetaGPRegressor(alpha=0.0, random_state=0)"
    )
    assert said_in_a_child(before, PREDICT) == "True"


def test_a_fork_is_noticed():
    before = "from metaprior.wfem.forked import check_not_forked"
    assert said_in_a_child(before, "check_not_forked(); print('fine', flush=True)") == "fine"
    refused = said_in_a_child(f"{before}; check_not_forked()", "check_not_forked()")
    assert refused.startswith("RuntimeError This process was forked from one that had used JAX")
    assert "multiprocessing.get_context('spawn')" in refused


@pytest.mark.slow
def test_a_prior_trained_by_gradients_refuses_in_a_forked_process():
    settings = "alpha=0.0, kernel='rbf', mean='constant', training=Training(n_steps=5), random_state=0"
    before = FIT.format(
        imported="from metaprior.wfem import Training, WFEMRegressor", estimator=f"WFEMRegressor({settings})"
    )
    assert said_in_a_child(before, PREDICT).startswith("RuntimeError This process was forked")


def test_every_way_to_jax_asks(monkeypatch, tmp_path):
    regressor = WFEMRegressor(**QUICK).fit(target_tasks=TASKS)
    classifier = WFEMClassifier(**QUICK).fit(target_tasks=LABELS)
    adapted = regressor.adapt(*TASKS[0])
    adapted.predict(TASKS[0][0])  # its posterior is kept
    regressor.save(tmp_path / "prior.safetensors")
    monkeypatch.setattr(checkpoint, "_first_user", os.getpid() + 1)
    for call in (
        lambda: regressor.adapt(*TASKS[0]).predict([[0.5]]),
        lambda: adapted.predict(TASKS[0][0]),
        lambda: adapted.predict(TASKS[0][0], return_cov=True),
        lambda: classifier.adapt(*LABELS[0]).predict_proba([[0.5]]),
        lambda: regressor.evaluate([(*TASKS[0], *TASKS[1])]),
        lambda: load(tmp_path / "prior.safetensors"),
        lambda: WFEMRegressor(**QUICK).fit(target_tasks=TASKS),
    ):
        with pytest.raises(RuntimeError, match="forked from one that had used JAX"):
            call()
