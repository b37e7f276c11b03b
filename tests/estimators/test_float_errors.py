"""Programs that raise at floating-point errors and at warnings get the same answers as others."""

import numpy as np
import pandas as pd
import pytest

from hand_made_priors import export
from metaprior import MetaGPClassifier, MetaGPRegressor, load, open_tasks, predict_frame, store_tasks, tasks_from_frame
from metaprior.plots import plot_calibration, plot_prediction
from metaprior.wfem import Training, WFEMRegressor

KINDS = ("gaussian", "student-t", "poisson", "negative-binomial", "ordinal", "labels", "covariates")
FAR = np.array([[-1e6], [-40.0], [0.0], [1.0], [1e6]])  # where densities and correlations underflow


def draw(kind, n_tasks, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        x = rng.uniform(0, 4, (6, 1))
        f = np.sin(x[:, 0]) + shift + rng.normal()
        y = {
            "student-t": lambda f=f: f + 0.1 * rng.standard_t(2, 6),
            "poisson": lambda f=f: rng.poisson(np.exp(f)),
            "negative-binomial": lambda f=f: rng.poisson(np.exp(f) * rng.gamma(2, 0.5, 6)),
            "ordinal": lambda f=f: np.clip(np.round(f + 2), 0, 4),
            "labels": lambda f=f: np.where(f > np.median(f), "high", "low"),
        }.get(kind, lambda f=f: f + 0.1 * rng.normal(size=6))()
        tasks.append((np.column_stack([x, np.full(6, rng.normal())]) if kind == "covariates" else x, y))
    return tasks


def answers(kind, folder):
    """Everything that users call after a fit, with what it returns."""
    if kind == "labels":
        meta = MetaGPClassifier(alpha=0.5, random_state=0)
    elif kind == "covariates":
        meta = MetaGPRegressor(alpha=0.5, covariates=[1], random_state=0)
    else:
        meta = MetaGPRegressor(alpha=0.5, likelihood=kind, random_state=0)
    meta.fit(draw(kind, 8, 0.3, seed=1), draw(kind, 6, seed=2))
    new, far = draw(kind, 3, seed=3), FAR if kind != "covariates" else np.column_stack([FAR, np.full(5, np.nan)])
    meta.save(folder / "prior.safetensors")
    task = load(folder / "prior.safetensors").adapt(*new[0])
    found = [task.predict(far), task.update(*[part[:2] for part in new[0]]).predict(far)]
    if kind == "labels":
        found += [task.predict_proba(far), task.predict_log_proba(far)]
    else:
        predictive = task.predictive(far)
        found += [
            *task.interval(far),
            task.quantile(far, 0.01),
            task.log_density(*new[0]),
            task.sample(far, 2, random_state=0),
        ]
        found += [predictive.mean(), predictive.std(), predictive.quantile(0.999)]
        found += meta.predict_many([(x[:3], y[:3], far) for x, y in new])
    loss = "log_loss" if kind == "labels" else "nll"
    found += [meta.evaluate(new, context=2)[loss], meta.compare(new, context=2).scores["metaprior"][loss]]
    print(meta.compare(new, context=2), meta.transfer_report(), meta.fitted_on(new), meta)
    if kind in ("gaussian", "labels"):
        exported = export(meta.adapt(*new[0]), folder)
        found.append(exported.predict(FAR) if kind == "labels" else exported.interval(FAR)[0])
    return [np.asarray(each) for each in found]


@pytest.mark.filterwarnings("ignore::UserWarning")  # far away, few tasks
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_a_program_that_ignores_them(kind, tmp_path):
    expected = answers(kind, tmp_path)
    with np.errstate(all="raise"):
        found = answers(kind, tmp_path)
    for first, second in zip(expected, found, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tables_stored_tasks_and_plots(tmp_path):
    rows = [(i, hour, 1e-160 * i + np.sin(hour + i), i % 2) for i in range(12) for hour in range(6)]
    pd.DataFrame(rows, columns=["task", "hour", "y", "town"]).to_csv(tmp_path / "t.csv", index=False)
    columns = {"task": "task", "x": "hour", "y": "y"}
    with np.errstate(all="raise"):
        store_tasks(tmp_path / "t.csv", tmp_path / "stored", **columns, environment="town")
        MetaGPRegressor(alpha=0.5, random_state=0).fit(open_tasks(tmp_path / "stored"), target="1")
        tasks = tasks_from_frame(tmp_path / "t.csv", **columns)
        meta = MetaGPRegressor(random_state=0).fit(target_tasks=tasks[:8])
        assert np.isfinite(predict_frame(meta, tmp_path / "t.csv", tmp_path / "t.csv", **columns)["mean"]).all()
        plot_prediction(meta, *tasks[9], FAR)
        tests = [(x[:3], y[:3], x[3:], y[3:]) for x, y in tasks[8:]]
        plot_calibration(meta, tests)
        single = meta.to_sklearn().fit(*tasks[9])
        assert np.isfinite(single.predict(FAR)).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gradient_training():
    with np.errstate(all="raise"):
        meta = WFEMRegressor("rbf", "linear", training=Training(n_steps=3), random_state=0)
        meta.fit(draw("gaussian", 4, seed=1), draw("gaussian", 4, seed=2))
        assert np.isfinite(meta.adapt(*draw("gaussian", 1, seed=3)[0]).predict(FAR)).all()
        meta.evaluate(draw("gaussian", 3, seed=3), context=2)
