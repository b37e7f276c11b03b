"""What the golden file holds: predictions through the public API and the command line, by the name of a case.

A case returns arrays by name. It is small, and uses nothing but what users use, so that it survives any move inside.
"""

import csv
import json
import tempfile
from pathlib import Path

import golden_problems as problems
import numpy as np
from golden_problems import N_TESTS, episodes, lines, patients, split, split_frames, two_inputs, walks, with_outcome
from running import call

from metaprior import MetaGPClassifier, MetaGPRegressor, StoredTasks, load, open_tasks, store_tasks
from metaprior.wfem import SVGD, Laplace, Training, WFEMClassifier, WFEMRegressor

CASES = {}
R_TABLES = ("exam", "hsb82", "nlschools", "pbcseq", "milk", "spruce", "soybean", "chicks", "orthodont", "rats")
OTHER_TABLES = ("physionet-gcs", "physionet-hct", "ujiindoorloc", "intel-berkeley", "colorado")  # of METAPRIOR_DATA
SEED = 2_000_000  # of draws that no setting was chosen on, and none is reported of


def case(function):
    """Register a case by the name of its function."""
    CASES[function.__name__] = function
    return function


def readings(meta, tests):
    """Return what a prior of readings, counts or ranks says of test tasks, and how it was chosen."""
    score = meta.transfer_report().score
    found = {"environment_weights": meta.environment_weights_, "scores": np.empty(0) if score is None else score}
    found["families"] = np.array([meta.family_weights_[name] for name in sorted(meta.family_weights_)])
    for i, (x, y, x_new, y_new) in enumerate(tests[:N_TESTS]):
        task = meta.adapt(x, y)
        found[f"task {i} mean"], found[f"task {i} std"] = task.predict(x_new, return_std=True)
        found[f"task {i} lower"], found[f"task {i} upper"] = task.interval(x_new, coverage=0.8)
        found[f"task {i} log density"] = task.log_density(x_new, y_new)
    scores = meta.evaluate(tests)
    return found | {name: np.array(scores[name]) for name in ("rmse", "nll", "coverage", "width")}


def labels(meta, tests):
    """Return what a prior of labels says of test tasks."""
    found = {"environment_weights": meta.environment_weights_}
    for i, (x, y, x_new, _) in enumerate(tests[:N_TESTS]):
        found[f"task {i} log probabilities"] = meta.adapt(x, y).predict_log_proba(x_new)
    scores = meta.evaluate(tests)
    return found | {name: np.array(scores[name]) for name in ("accuracy", "log_loss", "brier")}


def regressor(**settings):
    """Return the default with a seed."""
    return MetaGPRegressor(random_state=0, progress=False, **settings)


def table(name):
    """Fit the default to one draw of an environment of the comparison with peers."""
    from metaprior_studies.peers.tables import ENVIRONMENTS

    drawn = ENVIRONMENTS[name].draw(SEED)
    source = [(x[:10], y[:10]) for x, y in drawn.source[:12]]
    target = [(x[:10], y[:10]) for x, y in drawn.target[:5]]
    tests = [(x, y, x_new[: problems.N_QUERIES], y_new[: problems.N_QUERIES]) for x, y, x_new, y_new in drawn.test[:6]]
    return readings(regressor().fit(source, target), tests)


@case
def source_and_target():
    source, target, new = lines(8), lines(4, slope=1.4, seed=1), split(lines(6, n=11, slope=1.4, seed=2), 4)
    return readings(regressor().fit(source, target), new)


@case
def target_alone():
    return readings(regressor().fit(target_tasks=lines(7)), split(lines(5, n=11, seed=2), 4))


@case
def source_alone():
    return readings(regressor(alpha=1.0).fit(lines(7)), split(lines(5, n=11, seed=2), 4))


@case
def given_alpha_and_noise():
    meta = regressor(alpha=0.3, noise_std=0.2).fit(lines(6), lines(4, slope=1.4, seed=1))
    return readings(meta, split(lines(5, n=11, slope=1.4, seed=2), 4))


@case
def three_environments():
    environments = {"a": lines(6), "b": lines(5, slope=-1.0, seed=1), "c": lines(4, slope=1.2, seed=3)}
    meta = regressor().fit(environments, target="c")
    return readings(meta, split(lines(5, n=11, slope=1.2, seed=2), 4))


@case
def several_inputs():
    return readings(regressor().fit(two_inputs(7), two_inputs(4, seed=1)), split(two_inputs(5, n=12, seed=2), 4))


@case
def without_readings():
    meta = regressor().fit(lines(6), lines(4, seed=1))
    x = np.linspace(-2.0, 12.0, 6)[:, None]
    mean, covariance = meta.adapt(np.empty((0, 1)), np.empty(0)).predict(x, return_cov=True)
    return {"mean": mean, "covariance": covariance}


@case
def covariates_and_categories():
    settings = {"covariates": ["age", "sex"], "categorical": ["ward", "sex"]}
    meta = regressor(**settings).fit(patients(10), patients(6, seed=1))
    found = readings(meta, split_frames(patients(5, seed=2), 3))
    return found | {"covariates": np.array([meta.covariate_weights_[name] for name in sorted(meta.covariate_weights_)])}


@case
def missing_covariates():
    meta = regressor(covariates=["age", "sex"]).fit(target_tasks=patients(12, missing=True))
    return readings(meta, split_frames(patients(5, seed=2, missing=True), 3))


@case
def forecasts():
    meta = regressor(context=("first", 5)).fit(walks(8), walks(5, seed=1))
    return readings(meta, split(walks(5, seed=2), 5))


@case
def conformal():
    meta = regressor(conformal=True).fit(target_tasks=lines(10))
    found = {}
    for i, (x, y, x_new, _) in enumerate(split(lines(3, n=11, seed=2), 4)):
        found[f"task {i} lower"], found[f"task {i} upper"] = meta.adapt(x, y).interval(x_new, method="conformal")
    return found


@case
def conformal_counts():
    tasks = with_outcome(lines(16, n=11), problems.counts)
    meta = regressor(likelihood="poisson", conformal=True).fit(target_tasks=tasks[:10])
    found = {}
    for i, (x, y, x_new, _) in enumerate(split(tasks[10:13], 4)):
        found[f"task {i} lower"], found[f"task {i} upper"] = meta.adapt(x, y).interval(x_new, method="conformal")
    return found


@case
def counts():
    tasks = with_outcome(lines(16, n=11), problems.counts)
    return readings(regressor(likelihood="poisson").fit(tasks[:7], tasks[7:11]), split(tasks[11:], 4))


@case
def overdispersed_counts():
    tasks = with_outcome(lines(16, n=11), problems.counts)
    return readings(regressor(likelihood="negative-binomial").fit(tasks[:7], tasks[7:11]), split(tasks[11:], 4))


@case
def counts_with_exposure():
    tasks = problems.exposed(lines(16, n=11))
    return readings(regressor(likelihood="poisson", exposure=1).fit(tasks[:7], tasks[7:11]), split(tasks[11:], 4))


@case
def ranks():
    tasks = with_outcome(lines(16, n=11), problems.ranks)
    return readings(regressor(likelihood="ordinal").fit(tasks[:7], tasks[7:11]), split(tasks[11:], 4))


@case
def outliers():
    tasks = with_outcome(lines(16, n=11), problems.outliers)
    return readings(regressor(likelihood="student-t").fit(tasks[:7], tasks[7:11]), split(tasks[11:], 4))


@case
def shared_labels():
    tasks = episodes(14, n_classes=3)
    return labels(MetaGPClassifier(random_state=0).fit(tasks[:6], tasks[6:10]), split(tasks[10:], 6))


@case
def own_labels():
    tasks = episodes(14, shared=False)
    return labels(MetaGPClassifier(random_state=0).fit(tasks[:6], tasks[6:10]), split(tasks[10:], 6))


@case
def labels_with_covariates():
    tasks = [(x, np.where(y > np.median(y), "ill", "well")) for x, y in patients(14)]
    meta = MetaGPClassifier(covariates=["age"], random_state=0).fit(target_tasks=tasks[:10])
    return labels(meta, split_frames(tasks[10:], 4))


@case
def saved_and_loaded():
    meta = regressor().fit(lines(6), lines(4, slope=1.4, seed=1))
    with tempfile.TemporaryDirectory() as folder:
        meta.save(Path(folder) / "prior.safetensors")
        return readings(load(Path(folder) / "prior.safetensors"), split(lines(5, n=11, slope=1.4, seed=2), 4))


@case
def saved_labels_and_loaded():
    tasks = episodes(14, n_classes=3)
    with tempfile.TemporaryDirectory() as folder:
        MetaGPClassifier(random_state=0).fit(tasks[:6], tasks[6:10]).save(Path(folder) / "prior.safetensors")
        return labels(load(Path(folder) / "prior.safetensors"), split(tasks[10:], 6))


@case
def saved_counts_and_loaded():
    tasks = with_outcome(lines(16, n=11), problems.counts)
    meta = regressor(likelihood="negative-binomial").fit(tasks[:7], tasks[7:11])
    with tempfile.TemporaryDirectory() as folder:
        meta.save(Path(folder) / "prior.safetensors")
        return readings(load(Path(folder) / "prior.safetensors"), split(tasks[11:], 4))


@case
def exported():
    meta, (x, y, x_new, _) = regressor().fit(target_tasks=lines(6)), split(lines(1, n=11, seed=2), 4)[0]
    with tempfile.TemporaryDirectory() as folder:
        meta.adapt(x, y).export(path := Path(folder) / "task.py")
        names = {"__name__": "exported"}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    mean, std = names["predict"](x_new, return_std=True)
    return {"mean": np.asarray(mean), "std": np.asarray(std)}


@case
def updated():
    meta = regressor().fit(target_tasks=lines(6))
    task = meta.adapt(*lines(1, n=3, seed=2)[0]).update(*lines(1, n=3, seed=3)[0])
    mean, std = task.predict(np.linspace(0.0, 10.0, 5)[:, None], return_std=True)
    return {"mean": mean, "std": std}


@case
def compared():
    meta = regressor().fit(lines(6), lines(4, slope=1.4, seed=1))
    compared = meta.compare(split(lines(5, n=11, slope=1.4, seed=2), 4))
    ours = ("metaprior", "mixed model", "hierarchical GP")  # scikit-learn's own optimizer is not ours to pin
    scores = {name: score for name, score in compared.scores.items() if any(name.startswith(each) for each in ours)}
    return {f"{name} {metric}": np.array(score[metric]) for name, score in scores.items() for metric in ("rmse", "nll")}


@case
def stored_tasks():
    rows = [(environment, task, float(x), float(y)) for environment, tasks in (("a", lines(6)), ("b", lines(4, seed=1)))
            for task, (xs, ys) in enumerate(tasks) for x, y in zip(xs[:, 0], ys, strict=True)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        written = "\n".join(f"{environment},{environment}{task},{x!r},{y!r}" for environment, task, x, y in rows)
        (Path(folder) / "rows.csv").write_text(f"where,task,x,y\n{written}\n")
        columns = {"task": "task", "x": "x", "y": "y", "environment": "where"}
        store_tasks(Path(folder) / "rows.csv", Path(folder) / "stored", **columns)
        meta = regressor().fit(open_tasks(Path(folder) / "stored"), target="b")
        return readings(meta, split(lines(5, n=11, seed=2), 4))


@case
def command_line():
    """The README's table, from `fit` to `predict` and `evaluate`."""
    with tempfile.TemporaryDirectory() as folder:
        call("example", "--out", folder)
        columns = ("--task", "patient", "--x", "hours", "--y", "heart_rate", "--environment", "hospital")
        prior, out = Path(folder) / "prior.safetensors", Path(folder) / "predictions.csv"
        call("fit", f"{folder}/patients.csv", *columns, "--target", "south", "--out", prior)
        call("predict", prior, f"{folder}/readings.csv", f"{folder}/hours.csv", "--out", out)
        scores = json.loads(call("evaluate", prior, f"{folder}/test.csv", "--json").stdout)
        with out.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    found = {name: np.array([float(row[name]) for row in rows[::5]]) for name in ("mean", "std", "lower", "upper")}
    ours = scores["overall"]["metaprior"]
    return found | {name: np.array(ours[name]) for name in ("rmse", "nll", "coverage")}


def wfem_settings(**settings):
    """Return settings of a short training of the paper's prior."""
    training = Training(n_steps=60, dtype="float64", progress=False)
    return {"alpha": 0.4, "temperature": "bayes", "training": training, "random_state": 0} | settings


def particles(meta):
    """Return what is learned by gradients."""
    return {"final loss": np.array(meta.loss_trace_[-1]), "weights": meta.particle_weights_}


@case
def wfem_map():
    meta = WFEMRegressor(**wfem_settings()).fit(lines(6), lines(4, slope=1.4, seed=1))
    return readings(meta, split(lines(5, n=11, slope=1.4, seed=2), 4)) | particles(meta)


@case
def wfem_svgd():
    meta = WFEMRegressor(inference=SVGD(n_particles=3), **wfem_settings())
    meta.fit(lines(6), lines(4, slope=1.4, seed=1))
    return readings(meta, split(lines(5, n=11, slope=1.4, seed=2), 4)) | particles(meta)


@case
def wfem_laplace():
    meta = WFEMRegressor("linear+rbf", "linear", inference=Laplace(n_draws=4), **wfem_settings())
    meta.fit(lines(6), lines(4, slope=1.4, seed=1))
    return readings(meta, split(lines(5, n=11, slope=1.4, seed=2), 4)) | particles(meta)


@case
def wfem_labels():
    tasks = episodes(14, shared=False)
    meta = WFEMClassifier(inference=SVGD(n_particles=2), **wfem_settings()).fit(tasks[:6], tasks[6:10])
    return labels(meta, split(tasks[10:], 6)) | particles(meta)


@case
def wfem_stream():
    stored = []
    for tasks in (lines(40), lines(10, slope=1.4, seed=1)):
        x, y = (np.concatenate(parts) for parts in zip(*tasks, strict=True))
        stored.append(StoredTasks.from_arrays(x, y, np.cumsum([0, *(len(y) for _, y in tasks)])))
    settings = wfem_settings()
    settings["training"] = Training(n_steps=60, batch_size=8, dtype="float64", progress=False)
    meta = WFEMRegressor("rbf", "linear", **settings).fit(*stored)
    return readings(meta, split(lines(5, n=11, slope=1.4, seed=2), 4)) | particles(meta)


@case
def wfem_search():
    meta = WFEMRegressor("rbf", "linear", **wfem_settings(alpha="auto"))
    meta.fit(lines(6), lines(4, slope=1.4, seed=1))
    return readings(meta, split(lines(5, n=11, slope=1.4, seed=2), 4)) | particles(meta)
