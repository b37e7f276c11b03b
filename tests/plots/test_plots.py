"""What plots draw is what the prior predicts, and what the metrics count; wrong arguments are named."""

import copy

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

from metaprior import MetaGPRegressor
from metaprior.plots import (
    plot_alpha_path,
    plot_calibration,
    plot_candidates,
    plot_posterior,
    plot_prediction,
    plot_prior_samples,
    plot_training,
)
from metaprior.search.report import TransferReport
from metaprior.wfem import Training, WFEMClassifier, WFEMRegressor

SMALL = {"kernel": "rbf", "mean": "constant", "random_state": 0}
UNTRAINED = {**SMALL, "alpha": 0.5, "training": Training(n_steps=0)}


def make_tasks(seed, n_tasks, n=6, input_dim=1):
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        x = rng.uniform(-3, 3, size=(n, input_dim))
        tasks.append((x, 10.0 + np.sin(x[:, 0] + rng.normal()) + 0.1 * rng.normal(size=n)))
    return tasks


def make_tests(seed, n_tasks, input_dim=1):
    """Of unequal numbers of queries."""
    whole = [make_tasks(seed + i, 1, 8 + i % 2, input_dim)[0] for i in range(n_tasks)]
    return [(x[:4], y[:4], x[4:], y[4:]) for x, y in whole]


def labeled(tasks, names=("ill", "well")):
    return [(x, np.array(names)[(x[:, 0] > 0.3 * np.sin(i)).astype(int)]) for i, (x, _) in enumerate(tasks)]


TESTS = make_tests(10, 5)
X, Y, X_QUERY, Y_QUERY = TESTS[1]
LABELLED_TESTS = [(x[:4], y[:4], x[4:], y[4:]) for x, y in labeled(make_tasks(5, 6, 12))]


@pytest.fixture(scope="module")
def meta():
    fitted = WFEMRegressor(alpha=[0.0, 0.5], **SMALL, training=Training(n_steps=4, progress=False))
    return fitted.fit(make_tasks(0, 6), make_tasks(1, 3), validation_tasks=TESTS[:2])


@pytest.fixture(scope="module")
def several():
    """Two input columns, not trained."""
    tasks = [make_tasks(seed, 2, input_dim=2) for seed in (0, 1)]
    return WFEMRegressor(**UNTRAINED).fit(*tasks)


@pytest.fixture(scope="module")
def classifier():
    """Not trained."""
    return WFEMClassifier(**UNTRAINED).fit(labeled(make_tasks(0, 4)), labeled(make_tasks(1, 3)))


@pytest.fixture(autouse=True)
def _no_pyplot():
    yield
    assert plt.get_fignums() == []


def line(axes, label):
    """The data (n, 2) of the one line of that label."""
    [found] = [each for each in axes.lines if each.get_label() == label]
    return np.column_stack(found.get_data())


def band(axes):
    """x, lower and upper end of the one band."""
    [found] = axes.collections
    vertices = found.get_paths()[0].vertices
    n = (len(vertices) - 3) // 2
    return vertices[1 : n + 1, 0], vertices[1 : n + 1, 1], vertices[n + 2 : 2 * n + 2, 1][::-1]


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_prediction_over_one_input(meta):
    axes = plot_prediction(meta, X, Y, X_QUERY, Y_QUERY, coverage=0.8, names=("day", "level"))
    grid, mean = line(axes, "mean").T
    assert grid.min() < min(X.min(), X_QUERY.min()) < max(X.max(), X_QUERY.max()) < grid.max()
    task = meta.adapt(X, Y)
    np.testing.assert_allclose(mean, task.predict(grid), rtol=1e-12)
    x, lower, upper = band(axes)
    np.testing.assert_array_equal(x, grid)
    np.testing.assert_allclose((lower, upper), task.interval(grid, 0.8), rtol=1e-12)
    np.testing.assert_array_equal(line(axes, "context"), np.column_stack([X, Y]))
    np.testing.assert_array_equal(line(axes, "queries"), np.column_stack([X_QUERY, Y_QUERY]))
    [queries] = [each for each in axes.lines if each.get_label() == "queries"]
    assert queries.get_markerfacecolor() == "none"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("day", "level")
    assert legend_of(axes) == ["80% band", "mean", "context", "queries"]
    inside = np.mean((task.interval(X_QUERY, 0.8)[0] <= Y_QUERY) & (task.interval(X_QUERY, 0.8)[1] >= Y_QUERY))
    assert f"{inside:.0%} of {len(Y_QUERY)} queries inside the 80% interval" in axes.get_title()
    assert axes.figure.get_layout_engine() is not None
    assert not axes.spines["top"].get_visible()


def test_queries_without_y_extend_the_grid_and_one_point_has_a_range(meta):
    grid = line(plot_prediction(meta, X, Y, [20.0]), "mean")[:, 0]
    assert grid.max() > 20.0
    spread = meta.model_.members[0].scaling.x_std[0]
    grid = line(plot_prediction(meta, [1.0], [10.0]), "mean")[:, 0]
    np.testing.assert_allclose(grid[[0, -1]], [1.0 - spread, 1.0 + spread])


def test_an_empty_context_is_the_prior(meta):
    axes = plot_prediction(meta, [], [])
    scaling = meta.model_.members[0].scaling
    grid, mean = line(axes, "mean").T
    ends = [scaling.x_mean[0] - 2.5 * scaling.x_std[0], scaling.x_mean[0] + 2.5 * scaling.x_std[0]]
    np.testing.assert_allclose(grid[[0, -1]], ends)
    np.testing.assert_allclose(mean, meta.adapt([], []).predict(grid), rtol=1e-12)
    assert legend_of(axes) == ["90% band", "mean"]
    assert "prior" in axes.get_title()


def test_several_inputs_are_drawn_against_what_was_observed(several):
    x_context, y_context, x_query, y_query = make_tests(3, 1, input_dim=2)[0]
    axes = plot_prediction(several, x_context, y_context, x_query, y_query, names=("x", "level"))
    task = several.adapt(x_context, y_context)
    np.testing.assert_allclose(line(axes, "mean"), np.column_stack([y_query, task.predict(x_query)]), rtol=1e-12)
    [intervals] = axes.collections
    drawn = np.array([path.vertices for path in intervals.get_paths()])  # (queries, ends, x and y)
    np.testing.assert_allclose(drawn[..., 1].T, task.interval(x_query, 0.9), rtol=1e-12)
    np.testing.assert_array_equal(drawn[:, 0, 0], y_query)
    assert "predicted = observed" in legend_of(axes)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("level, observed", "level, predicted")
    with pytest.raises(ValueError, match=r"With 2 input columns .* pass X_query"):
        plot_prediction(several, x_context, y_context)


def test_several_inputs_without_observations_are_drawn_along_the_first(several):
    x_context, y_context, x_query, _ = make_tests(3, 1, input_dim=2)[0]
    axes = plot_prediction(several, x_context, y_context, x_query, names=("week", "level"))
    task = several.adapt(x_context, y_context)
    np.testing.assert_allclose(line(axes, "mean"), np.column_stack([x_query[:, 0], task.predict(x_query)]), rtol=1e-12)
    np.testing.assert_array_equal(line(axes, "context"), np.column_stack([x_context[:, 0], y_context]))
    drawn = np.array([path.vertices for path in axes.collections[0].get_paths()])
    np.testing.assert_allclose(drawn[..., 1].T, task.interval(x_query, 0.9), rtol=1e-12)
    assert axes.get_xlabel() == "week, one of 2 inputs"


def test_probabilities_over_one_input(classifier):
    x_context, y_context, x_query, y_query = LABELLED_TESTS[0]
    axes = plot_prediction(classifier, x_context, y_context, x_query, y_query)
    grid, probability = line(axes, "probability").T
    adapted = classifier.adapt(x_context, y_context)
    np.testing.assert_allclose(probability, adapted.predict_proba(grid)[:, 1], rtol=1e-12)
    np.testing.assert_array_equal(line(axes, "context")[:, 1], y_context == "well")
    np.testing.assert_array_equal(line(axes, "queries")[:, 1], y_query == "well")
    assert axes.get_ylabel() == "probability of well"
    assert [text.get_text() for text in axes.texts] == ["ill", "well"]
    named = plot_prediction(classifier, [], [], names=("dose", "state"))
    assert (named.get_xlabel(), named.get_ylabel()) == ("dose", "probability of state = well")


def test_classes_may_be_known_from_the_queries_only():
    tasks = labeled(make_tasks(0, 4)), labeled(make_tasks(1, 3))
    classifier = WFEMClassifier(**UNTRAINED, shared_classes=False).fit(*tasks)
    axes = plot_prediction(classifier, [0.0, 1.0, 0.0, 1.0], ["finch"] * 4, [2.0], ["wren"])
    assert axes.get_ylabel() == "probability of wren"
    with pytest.raises(ValueError, match="one kind"):
        plot_prediction(classifier, [0.0], ["finch"], [2.0], [3])


def test_samples_of_the_prior(meta):
    axes = plot_prior_samples(meta, n_samples=3, random_state=7)
    prior = meta.adapt([], [])
    grid = line(axes, "mean")[:, 0]
    drawn = [each.get_ydata() for each in axes.lines if each.get_label() != "mean"]
    np.testing.assert_allclose(drawn, prior.sample(grid, 3, latent=True, random_state=7), rtol=1e-9)
    np.testing.assert_allclose(band(axes)[1:], prior.interval(grid, 0.9, latent=True), rtol=1e-9)
    assert legend_of(axes) == ["3 samples", "90% band", "mean"]
    assert legend_of(plot_prior_samples(meta, x=[2.0, 1.0], n_samples=0)) == ["90% band", "mean"]


def test_samples_over_one_of_several_inputs(several):
    axes = plot_prior_samples(several, x=[3.0, 1.0, 2.0], n_samples=1, column=1)
    grid, mean = line(axes, "mean").T
    np.testing.assert_array_equal(grid, [1.0, 2.0, 3.0])
    inputs = np.column_stack([np.full(3, several.model_.members[0].scaling.x_mean[0]), grid])
    np.testing.assert_allclose(mean, several.adapt([], []).predict(inputs), rtol=1e-9)
    assert axes.get_xlabel() == "input column 1 (the others at their mean)"


def test_training(meta, several):
    axes = plot_training(meta)
    np.testing.assert_array_equal(line(axes, "loss"), np.column_stack([np.arange(4), meta.loss_trace_]))
    assert line(axes, "kept: step 4")[0, 0] == meta.best_step_ == 4
    [twin] = [other for other in axes.figure.axes if other is not axes]
    np.testing.assert_array_equal(line(twin, "validation"), [[4, meta.validation_trace_[0]]])
    assert legend_of(axes) == ["loss", "kept: step 4", "validation"]
    unvalidated = copy.copy(meta)
    unvalidated.validation_trace_ = np.empty(0)
    assert plot_training(unvalidated).figure.axes[1:] == []
    untrained = plot_training(several)
    assert "n_steps=0" in untrained.texts[0].get_text()
    assert not untrained.lines


def test_training_of_the_default_shows_the_families_that_are_averaged():
    tasks = [(x, y) for x, y, *_ in TESTS]
    default = MetaGPRegressor(random_state=0).fit(target_tasks=[(np.vstack([x, x]), np.append(y, y)) for x, y in tasks])
    axes = plot_training(default)
    names = [label.get_text() for label in axes.get_yticklabels()]
    drawn = dict(zip(names, [bar.get_width() for bar in axes.patches], strict=True))
    assert drawn == default.family_weights_
    assert "held-out" in axes.get_title() or "untested" in axes.get_title()
    assert not axes.lines


def test_quantiles_are_counted_as_the_metrics_do(meta):
    axes = plot_calibration(meta, TESTS)
    levels, observed = line(axes, "observed").T
    report = meta.evaluate(TESTS)
    np.testing.assert_allclose(np.mean(np.abs(observed - levels)), report.calibration_error, rtol=1e-12)
    u = [meta.adapt(x, y).predictive(x_new).cdf(y_new) for x, y, x_new, y_new in TESTS]
    np.testing.assert_allclose(observed, [np.mean(np.concatenate(u) <= level) for level in levels], rtol=1e-12)
    x, lower, upper = band(axes)
    np.testing.assert_array_equal(x, levels)
    assert (lower <= observed).all()
    assert (observed <= upper).all()
    assert (lower < upper).any()
    np.testing.assert_array_equal(band(plot_calibration(meta, TESTS)), (x, lower, upper))  # the same again
    assert f"calibration error {report.calibration_error:.3f}" in axes.get_title()
    assert f"coverage of the 90% interval {report.coverage:.0%}" in axes.get_title()
    assert not plot_calibration(meta, TESTS[:1]).collections  # one task says nothing of others


def test_the_path_of_alpha(meta, several):
    axes = plot_alpha_path(meta)
    path = meta.alpha_path_
    errors, points = axes.collections
    np.testing.assert_allclose(points.get_offsets(), np.column_stack([path.alpha, path.score]), rtol=1e-12)
    half = np.array([each.vertices[1, 1] - each.vertices[0, 1] for each in errors.get_paths()]) / 2
    np.testing.assert_allclose(half, path.standard_error, rtol=1e-9)
    assert np.argsort(points.get_sizes()).tolist() == np.argsort(path.weight).tolist()
    assert line(axes, "target-only")[0, 0] == 0.0
    np.testing.assert_allclose(line(axes, "pooled")[0, 0], 6 / 9)
    assert axes.get_xlabel() == "alpha, the weight of the source"
    assert axes.get_title().replace("\n", " ") == meta.transfer_report().verdict
    nothing = plot_alpha_path(several)
    assert "Nothing was compared" in nothing.texts[0].get_text()
    assert not nothing.collections


def test_the_path_of_alpha_with_several_sources(meta):
    weights = np.array([[0.0, 0.0, 1.0], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    temperature, score = np.array([1.0, 1.0, 4.0, 1.0]), np.array([-1.0, -0.5, -0.6, -np.inf])
    ones = np.ones(4)
    chosen = copy.copy(meta)
    chosen.report_ = TransferReport(
        ("a", "b", "c"), "c", 4, weights, temperature, ones, ones / 4, score, standard_error=0.1 * ones
    )
    axes = plot_alpha_path(chosen)
    _, plain, tempered = axes.collections
    np.testing.assert_allclose(plain.get_offsets(), [[0.0, -1.0], [0.5, -0.5]])
    np.testing.assert_allclose(tempered.get_offsets(), [[0.5, -0.6]])
    others = ["held-out score (area: weight)", "with another temperature or prior_std"]
    assert legend_of(axes) == ["target-only", *others]  # pooled is not known
    assert axes.get_xlabel() == "alpha, the weight of the sources together"
    assert [text.get_text() for text in axes.texts] == ["1 diverged"]


def test_reports_know_where_pooling_is(meta):
    report = meta.transfer_report()
    assert (report.n_source_tasks, report.n_target_tasks) == (6, 3)
    stored = report.to_json()
    assert TransferReport.from_json(stored).pooled_alpha == report.pooled_alpha
    del stored["n_source_tasks"]  # as in older files
    assert TransferReport.from_json(stored).pooled_alpha is None


def test_axes_are_passed_through(meta, classifier):
    calls = [
        lambda axes: plot_prediction(meta, X, Y, axes=axes),
        lambda axes: plot_prediction(classifier, [], [], axes=axes),
        lambda axes: plot_prior_samples(meta, n_samples=2, axes=axes),
        lambda axes: plot_training(meta, axes=axes),
        lambda axes: plot_calibration(meta, TESTS, axes=axes),
        lambda axes: plot_calibration(classifier, LABELLED_TESTS, axes=axes),
        lambda axes: plot_alpha_path(meta, axes=axes),
    ]
    figure = Figure(figsize=(12, 12), layout="constrained")
    panels = figure.subplots(3, 3).flat
    for call, axes in zip(calls, panels, strict=False):
        assert call(axes) is axes
    figure.draw_without_rendering()
    with pytest.raises(ValueError, match=r"axes must be one matplotlib Axes.*got ndarray"):
        plot_training(meta, axes=np.array([panels[0]]))


def test_results_at_hand(meta):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    grid = np.linspace(0.0, 1.0, 5)
    plot_posterior(left, grid, meta.adapt(X, Y).predictive(grid), X[:, 0], Y, truth=grid)
    np.testing.assert_array_equal(line(left, "truth"), np.column_stack([grid, grid]))
    left, right = figure.subplots(1, 2)
    plot_candidates(left, right, ["a", "b"], np.array([0.0, -np.inf]), np.array([0.1, np.nan]), np.array([1.0, 0.0]))
    assert [bar.get_width() for bar in right.patches] == [1.0, 0.0]
    assert len(left.collections[-1].get_offsets()) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, c, s: plot_prediction(m, X, Y, None, Y_QUERY), "y_query was given without X_query"),
        (lambda m, c, s: plot_prediction(m, X, Y[:2]), "context: X and y must have the same number"),
        (lambda m, c, s: plot_prediction(m, X, Y, np.ones((2, 3))), "query: X must have 1 column"),
        (lambda m, c, s: plot_prediction(m, X, Y, coverage=90), "coverage must lie strictly between 0 and 1; got 90"),
        (lambda m, c, s: plot_prediction(m, X, Y, names="xy"), "names must be a pair"),
        (lambda m, c, s: plot_prior_samples(c), r"needs a MetaGPRegressor.*plot_prediction\(meta, \[\], \[\]\)"),
        (lambda m, c, s: plot_prior_samples(s, column=2), "column must be less than 2.*got 2"),
        (lambda m, c, s: plot_prior_samples(m, column=-1), "column must be an integer of at least 0"),
        (lambda m, c, s: plot_prior_samples(m, x=[]), "x is empty"),
        (lambda m, c, s: plot_prior_samples(m, n_samples=-1), "n_samples must be an integer of at least 0"),
        (lambda m, c, s: plot_calibration(m, []), "test_tasks is empty"),
        (lambda m, c, s: plot_calibration(m, [(X, Y)]), r"test_tasks\[0\] must be \(X_context, .*got 2 parts"),
        (lambda m, c, s: plot_calibration(c, [(X, Y)]), r"test_tasks\[0\] must be \(X_context, .*got 2 parts"),
        (lambda m, c, s: plot_training("meta"), "meta must be a fitted MetaGPRegressor or MetaGPClassifier; got str"),
    ],
)
def test_errors_name_the_argument(meta, classifier, several, call, message):
    with pytest.raises(ValueError, match=message):
        call(meta, classifier, several)


def test_labels_over_several_inputs_are_drawn_at_queries():
    tasks = [labeled(make_tasks(seed, 2, input_dim=3)) for seed in (0, 1)]
    fitted = WFEMClassifier(**UNTRAINED).fit(*tasks)
    x, y = tasks[0][0]
    axes = plot_prediction(fitted, x, y, x[:3])
    expected = np.column_stack([x[:3, 0], fitted.adapt(x, y).predict_proba(x[:3])[:, 1]])
    np.testing.assert_allclose(line(axes, "probability"), expected, rtol=1e-9)
    assert axes.get_xlabel() == "x, one of 3 inputs"


def test_a_prior_that_is_not_fitted_is_refused():
    calls = [plot_training, plot_alpha_path, plot_prior_samples]
    calls += [lambda m: plot_calibration(m, TESTS), lambda m: plot_prediction(m, X, Y)]
    for call in calls:
        with pytest.raises(NotFittedError):
            call(MetaGPRegressor())


@pytest.mark.parametrize(("likelihood", "label"), [("poisson", "rate of y per unit of exposure"), ("ordinal", "level")])
def test_prior_samples_of_counts_and_ranks_are_in_the_units_of_y(likelihood, label):
    rng, tasks = np.random.default_rng(0), []
    for _ in range(6):
        x, days = rng.uniform(0, 4, 6), rng.integers(1, 6, 6)
        rate = np.exp(3.0 + 0.3 * rng.normal() + 0.2 * np.sin(x))
        counted = likelihood == "poisson"
        y = rng.poisson(rate * days) if counted else np.clip(np.round(2.0 + rng.normal() + np.sin(x)), 0, 4)
        tasks.append((np.column_stack([x, days]) if counted else x[:, None], y))
    exposure = {"exposure": 1} if likelihood == "poisson" else {}
    meta = MetaGPRegressor(likelihood=likelihood, random_state=0, **exposure).fit(target_tasks=tasks)
    axes = plot_prior_samples(meta, x=np.linspace(0.5, 3.5, 20), n_samples=3)
    assert label in axes.get_ylabel()
    drawn = np.array([line.get_ydata() for line in axes.lines])
    assert drawn.shape == (4, 20)
    assert (drawn > 0).all()
    if likelihood == "poisson":
        assert 8.0 < np.median(drawn[-1]) < 40.0  # and not its logarithm
    else:
        assert (drawn <= 4).all()
