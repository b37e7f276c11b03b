"""alpha="auto" as a user meets it: chosen, averaged, reported, saved; with many environments; and never a surprise."""

import re
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import clone

from metaprior import load
from metaprior.datasets import Sinusoid
from metaprior.predict.adapted_labels import AdaptedClassifiers
from metaprior.predict.batches import predict_tasks
from metaprior.predict.ensemble import Ensemble
from metaprior.tasks.types import Ragged
from metaprior.wfem import MAP, Gaussian, HyperPrior, Training, WFEMClassifier, WFEMRegressor

PROBLEM = Sinusoid(0.5)
SOURCE, TARGET = PROBLEM.source_tasks(6, 5, 0), PROBLEM.target_tasks(4, 5, 1)
TEST = PROBLEM.test_tasks(3, 4, 6, 2)
SMALL = {"alpha": "auto", "mean": "linear", "kernel": "rbf", "temperature": "bayes", "random_state": 0}
UNTRAINED = SMALL | {"training": Training(n_steps=0)}
SMALL["training"] = Training(n_steps=40)
X, Y, X_NEW, Y_NEW = TEST[0]


@pytest.fixture(scope="module")
def auto():
    return WFEMRegressor(**SMALL).fit(SOURCE, TARGET)


def alone(meta, i):
    """The i-th member by itself, as an estimator."""
    single = clone(meta)
    single.__dict__.update(vars(meta))
    single.model_ = Ensemble((meta.model_.members[i],), np.ones(1))
    return single


def test_what_is_kept(auto):
    path = auto.alpha_path_
    assert path.alpha.shape == path.score.shape == path.standard_error.shape == path.weight.shape == (6,)
    assert {0.0, 1.0} <= set(path.alpha.tolist())
    assert_allclose(path.weight.sum(), 1.0)
    assert_allclose(auto.alpha_, path.weight @ path.alpha)
    assert_allclose(auto.environment_weights_, [auto.alpha_, 1.0 - auto.alpha_])
    members = np.count_nonzero(path.weight)
    assert len(auto.model_.members) == len(auto.particle_weights_) == members > 1
    assert_allclose(auto.particle_weights_, path.weight[path.weight > 0])
    assert len(auto.loss_trace_) == auto.best_step_ == SMALL["training"].n_steps


def test_predictions_are_the_average_of_the_members(auto):
    weights = auto.model_.weights
    singles = [alone(auto, i).adapt(X, Y) for i in range(len(weights))]
    task = auto.adapt(X, Y)
    means, stds = np.array([single.predict(X_NEW, return_std=True) for single in singles]).swapaxes(0, 1)
    mean, std = task.predict(X_NEW, return_std=True)
    assert_allclose(mean, weights @ means)
    assert_allclose(std**2, weights @ (stds**2 + (means - mean) ** 2))
    logs = [single.log_density(X_NEW, Y_NEW) for single in singles]
    assert_allclose(task.log_density(X_NEW, Y_NEW), logsumexp(logs, axis=0, b=weights[:, None]))
    joint_mean, covariance = task.predict(X_NEW, return_cov=True)
    assert_allclose(joint_mean, mean)
    assert_allclose(np.diag(covariance), std**2)
    assert task.sample(X_NEW, 7, random_state=0).shape == (7, 6)
    predictive, y, mask = predict_tasks(auto.model_, TEST)
    assert_allclose(predictive.mean()[0], mean)
    assert_allclose(y[mask], np.concatenate([t.y_query for t in TEST]))


def test_members_are_fits_of_their_own_alpha(auto):
    """Each member is what a fit with that alpha gives: the average adds nothing of its own."""
    path = auto.alpha_path_
    alphas = path.alpha[path.weight > 0]
    for i, alpha in enumerate(alphas.tolist()):
        fixed = WFEMRegressor(**{**SMALL, "alpha": alpha}).fit(SOURCE, TARGET)
        assert_allclose(alone(auto, i).adapt(X, Y).predict(X_NEW), fixed.adapt(X, Y).predict(X_NEW), rtol=1e-3)


def test_it_is_repeatable_and_depends_on_the_seed(auto):
    again = WFEMRegressor(**SMALL).fit(SOURCE, TARGET)
    assert_array_equal(again.alpha_path_.weight, auto.alpha_path_.weight)
    other = WFEMRegressor(**{**SMALL, "random_state": 1}).fit(SOURCE, TARGET)
    assert (other.alpha_path_.weight != auto.alpha_path_.weight).any()


def test_units_do_not_matter(auto):
    def scale(tasks):
        return [(x, 1000.0 * y + 7.0) for x, y in tasks]

    scaled = WFEMRegressor(**SMALL).fit(scale(SOURCE), scale(TARGET))
    assert_allclose(scaled.alpha_path_.weight, auto.alpha_path_.weight, rtol=1e-3, atol=1e-6)
    assert_allclose(scaled.alpha_path_.score, auto.alpha_path_.score - np.log(1000.0), rtol=1e-3)


def test_files_hold_all_of_it(auto, tmp_path):
    auto.save(tmp_path / "prior")
    loaded = load(tmp_path / "prior")
    assert_array_equal(loaded.adapt(X, Y).predict(X_NEW), auto.adapt(X, Y).predict(X_NEW))
    assert str(loaded.transfer_report()) == str(auto.transfer_report())
    assert loaded.get_params() == auto.get_params()
    for name in ("alpha_", "temperature_", "environment_weights_", "particle_weights_"):
        assert_array_equal(getattr(loaded, name), getattr(auto, name))


def test_the_report_says_it_in_words(auto):
    text = " ".join(str(auto.transfer_report()).splitlines())
    assert re.search(r"source.*(helps|help|told): [+-]\d\.\d{3} ± \d\.\d{3} nats per reading", text)
    assert "4 held-out target tasks" in text
    assert "alpha = 0 (target-only)" in text
    assert max(map(len, str(auto.transfer_report()).splitlines())) <= 80


def test_a_given_alpha_is_reported_too():
    meta = WFEMRegressor(**{**SMALL, "alpha": 0.25}).fit(SOURCE, TARGET)
    assert meta.transfer_report().verdict == "Nothing was compared: alpha = 0.25."
    assert meta.alpha_path_.score is None
    assert meta.alpha_ == 0.25


def test_no_target_tasks_is_alpha_one_with_a_warning():
    with pytest.warns(UserWarning, match=r"no tasks of the target environment.*alpha is 1"):
        meta = WFEMRegressor(**UNTRAINED).fit(SOURCE)
    assert meta.alpha_ == 1.0
    with pytest.warns(UserWarning, match=r"need at least two tasks of the target environment.*there are 1"):
        WFEMRegressor(**{**SMALL, "temperature": "auto"}).fit(SOURCE, TARGET[:1])


def test_target_tasks_alone_leave_nothing_to_choose():
    meta = WFEMRegressor(**SMALL).fit(target_tasks=TARGET)
    assert (meta.alpha_, len(meta.model_.members)) == (0.0, 1)


def test_one_target_task_is_averaged_with_caution():
    meta = WFEMRegressor(**SMALL).fit(SOURCE, TARGET[:1])
    assert_allclose(meta.alpha_path_.alpha, [0.6 / 1.6, 2.4 / 3.4, 6 / 7])
    assert_allclose(meta.alpha_path_.weight, 1 / 3)
    assert "no target task could be held out" in meta.transfer_report().verdict


def test_target_tasks_of_one_sample_are_predicted_from_the_prior():
    singles = [(x[:1], y[:1]) for x, y in TARGET]
    meta = WFEMRegressor(**SMALL).fit(SOURCE, singles)
    assert np.isfinite(meta.alpha_path_.score).all()


@pytest.mark.parametrize("scale", [1e-30, 1e100])
def test_extreme_units_raise_no_warning(scale):
    meta = WFEMRegressor(**SMALL, likelihood=Gaussian(noise_std=0.1 * scale))
    meta.fit([(x, scale * y) for x, y in SOURCE], [(x, scale * y) for x, y in TARGET])
    assert np.isfinite(meta.adapt(X, scale * Y).predict(X_NEW)).all()


def test_constant_targets_raise_no_warning():
    meta = WFEMRegressor(**SMALL).fit(SOURCE, [(x, np.full_like(y, 0.1)) for x, y in TARGET])
    assert meta.alpha_path_.weight[-1] < 0.05  # source-only knows nothing of the constant


def test_mini_batches_and_more_particles_than_are_searched_with():
    settings = {**SMALL, "training": Training(n_steps=40, batch_size=3)}
    meta = WFEMRegressor(**settings, inference=MAP(n_particles=5)).fit(SOURCE, TARGET)
    n_members = len(meta.model_.members)
    assert meta.particle_weights_.shape == (5 * n_members,)
    assert_allclose(meta.particle_weights_.sum(), 1.0)


def test_samples_are_of_the_average(auto):
    task = auto.adapt(X, Y)
    mean, std = task.predict(X_NEW, return_std=True)
    drawn = task.sample(X_NEW, 4000, random_state=0)
    assert_allclose(drawn.mean(axis=0), mean, atol=5 * std.max() / np.sqrt(4000))
    assert_allclose(drawn.std(axis=0), std, rtol=0.1)


def test_members_are_trained_in_parts_where_memory_is_short(auto, monkeypatch):
    monkeypatch.setattr("metaprior.wfem.runs.MAX_BYTES", 1)
    parts = WFEMRegressor(**SMALL).fit(SOURCE, TARGET, validation_tasks=TEST)
    assert len(parts.model_.members) > 1
    assert_allclose(parts.adapt(X, Y).predict(X_NEW), auto.adapt(X, Y).predict(X_NEW), rtol=0.05)


def test_a_grid_of_ones_own():
    grid = [0.0, 0.05, 0.1, 0.15, 0.2, 0.3]  # as many as "auto" tries, which share a program
    meta = WFEMRegressor(**{**SMALL, "alpha": grid}).fit(SOURCE, TARGET)
    assert_array_equal(meta.alpha_path_.alpha, grid)
    assert 0.0 < meta.alpha_ < 0.3


def test_temperature_and_prior_std_can_be_chosen_too():
    given = {**SMALL, "alpha": 0.3}
    meta = WFEMRegressor(**{**given, "temperature": "auto"}, hyperprior=HyperPrior(std="auto")).fit(SOURCE, TARGET)
    report = meta.transfer_report()
    assert report.temperature.tolist() == [1.0, 0.25, 4.0, 1.0, 1.0]
    assert report.prior_std.tolist() == [1.0, 1.0, 1.0, 0.5, 2.0]
    assert meta.alpha_ == pytest.approx(0.3)
    bayes = WFEMRegressor(**given).fit(SOURCE, TARGET).temperature_
    assert_allclose(meta.temperature_, bayes * report.weight @ report.temperature, rtol=1e-5)


def test_named_environments_are_the_same_as_source_and_target(auto):
    named = WFEMRegressor(**SMALL).fit({"target": TARGET, "source": SOURCE}, target="target")
    assert_allclose(named.alpha_path_.weight, auto.alpha_path_.weight, atol=0.02)
    assert_allclose(named.environment_weights_[::-1], auto.environment_weights_, atol=0.02)


def test_many_environments():
    noise = [(x, np.random.default_rng(i).normal(5.0, 2.0, len(y))) for i, (x, y) in enumerate(SOURCE)]
    environments = {"a": SOURCE, "noise": noise, "b": PROBLEM.target_tasks(5, 5, 7), "mine": TARGET}
    meta = WFEMRegressor(**SMALL).fit(environments, target="mine")
    assert meta.environment_weights_.shape == (4,)
    assert_allclose(meta.environment_weights_.sum(), 1.0)
    assert_allclose(meta.alpha_, 1.0 - meta.environment_weights_[3])
    assert len(meta.alpha_path_.alpha) >= 6 + 9
    assert "a 0.29, noise 0.29, b 0.24" in str(meta.transfer_report())  # pooled
    assert max(map(len, str(meta.transfer_report()).splitlines())) <= 90
    given = WFEMRegressor(**{**UNTRAINED, "alpha": {"b": 0.4, "mine": 0.6}}).fit(environments, target="mine")
    assert_allclose(given.environment_weights_, [0.0, 0.0, 0.4, 0.6])
    number = WFEMRegressor(**{**UNTRAINED, "alpha": 0.5}).fit(environments, target="mine")
    assert_allclose(number.environment_weights_, [0.5 * 6 / 17, 0.5 * 6 / 17, 0.5 * 5 / 17, 0.5])


@pytest.mark.parametrize(
    ("environments", "arguments", "parts"),
    [
        ({"a": SOURCE, "b": TARGET}, {"target": "c"}, ("target must be one of the environments, 'a', 'b'", "'c'")),
        ({"a": SOURCE, "b": TARGET}, {}, ("target must name the environment", "'a', 'b'")),
        ({"a": SOURCE}, {"target": "a", "target_tasks": TARGET}, ("target_tasks must be left out",)),
        ({1: SOURCE}, {"target": 1}, ("keys must be strings", "1")),
        ({}, {"target": "a"}, ("empty mapping",)),
        ({"a": [], "b": []}, {"target": "a"}, ("no tasks",)),
        ({"a": SOURCE, "b": "tasks"}, {"target": "a"}, ("source_tasks['b']", "sequence of (X, y)")),
        (SOURCE, {"target": "a"}, ("target='a' names one of several environments",)),
    ],
)
def test_bad_environments(environments, arguments, parts):
    with pytest.raises(ValueError, match=r"task|target") as raised:
        WFEMRegressor(**SMALL).fit(environments, **arguments)
    assert all(part in str(raised.value) for part in parts), str(raised.value)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("value", [0, -1.0, "long", True, np.nan])
def test_bad_search_time(value):
    with pytest.raises(ValueError, match="search_time must be a positive number of seconds, or None"):
        Training(search_time=value)


def test_bad_validation_tasks_are_found_before_the_search(monkeypatch):
    monkeypatch.setattr("metaprior.wfem.fit.choose", lambda *_: pytest.fail("searched"))
    with pytest.raises(ValueError, match="validation_tasks"):
        WFEMRegressor(**SMALL).fit(SOURCE, TARGET, validation_tasks=[(X, Y)])


def test_search_time_bounds_the_search(monkeypatch):
    class Searched(Exception):
        pass

    def stop(source, sample, choice, *_):  # what follows the search is not bounded
        assert np.isfinite(choice.scores).all()
        raise Searched

    monkeypatch.setattr("metaprior.wfem.fit.train_members", stop)
    monkeypatch.setattr("metaprior.wfem.fit.COMPILING", 1.0)
    meta = WFEMRegressor(**{**SMALL, "training": Training(n_steps=4_000_000, search_time=2.0)})
    started = time.monotonic()
    with pytest.raises(Searched):
        meta.fit(SOURCE, TARGET)
    assert time.monotonic() - started < 40.0  # a million steps would take minutes


def test_without_time_to_compile_nothing_is_compared(monkeypatch):
    class Chosen(Exception):
        pass

    def stop(source, sample, choice, *_):
        assert choice.scores is None
        assert choice.weights.tolist() == [1 / 3] * 3
        raise Chosen

    monkeypatch.setattr("metaprior.wfem.fit.train_members", stop)
    monkeypatch.setattr("metaprior.wfem.fit.choose", lambda *_: pytest.fail("searched"))
    with pytest.warns(UserWarning, match="search_time of 3 s is too short to compare settings"), pytest.raises(Chosen):
        WFEMRegressor(**{**SMALL, "training": Training(n_steps=40, search_time=3.0)}).fit(SOURCE, TARGET)


def test_validation_tasks_stop_every_member():
    meta = WFEMRegressor(**{**SMALL, "training": Training(n_steps=300)}).fit(
        SOURCE, TARGET, validation_tasks=TEST, patience=1
    )
    assert len(meta.model_.members) > 1
    assert meta.best_step_ in (100, 200, 300)
    assert len(meta.validation_trace_) >= 1


@pytest.mark.parametrize("shared", [True, False], ids=["shared labels", "own labels"])
def test_classifier(shared, tmp_path):
    rng = np.random.default_rng(0)

    def tasks(n, shift):
        inputs = [rng.normal(size=(6, 2)) for _ in range(n)]
        return [
            (x, np.where(x[:, 0] + shift * x[:, 1] > 0, "ill" if shared else f"{i}a", "well" if shared else f"{i}b"))
            for i, x in enumerate(inputs)
        ]

    settings = {"alpha": [0.0, 0.5], "kernel": "rbf", "mean": "zero", "training": Training(n_steps=20)}
    settings |= {"temperature": "bayes", "random_state": 0}
    meta = WFEMClassifier(**settings).fit(tasks(5, 0.0), tasks(4, 0.3))
    assert 0.0 < meta.alpha_ < 0.5
    assert np.isfinite(meta.alpha_path_.score).all()
    x, y = tasks(1, 0.3)[0]
    probabilities = meta.adapt(x, y).predict_proba(x)
    assert_allclose(probabilities.sum(axis=1), 1.0)
    singles = [Ensemble((member,), np.ones(1)) for member in meta.model_.members]
    assert len(singles) == 2
    pair = np.unique(y)
    context = Ragged.of([x], (2,)), Ragged.of([(y == pair[1]).astype(float)])
    expected = sum(
        weight * AdaptedClassifiers(single, *context, [pair], "float64")[0].predict_proba(x)
        for weight, single in zip(meta.model_.weights, singles, strict=True)
    )
    assert_allclose(probabilities, expected, rtol=1e-9)
    assert_allclose(meta.adapt(x, y).predict_proba(x, n_samples=4000, random_state=0), expected, atol=0.05)
    evaluated = meta.evaluate([(x, y, x, y)])
    right = np.where(y == pair[1], expected[:, 1], expected[:, 0])
    assert_allclose(evaluated.log_loss, -np.log(right).mean(), rtol=1e-6)
    meta.save(tmp_path / "prior")
    assert_array_equal(load(tmp_path / "prior").adapt(x, y).predict_proba(x), probabilities)


def test_a_like_source_helps_and_an_unlike_one_is_left_out():
    """Noisy lines, whose slope the prior's mean learns: in the source it is the same, or of the other sign."""

    def lines(slope, n_tasks, n, rng):
        inputs = [rng.uniform(-2, 2, size=(n, 1)) for _ in range(n_tasks)]
        return [(x, slope * x[:, 0] + 2.0 * rng.normal(size=n)) for x in inputs]

    settings = {**SMALL, "likelihood": Gaussian(noise_std=2.0), "training": Training(n_steps=200)}
    alphas, errors = {}, {}
    for draw in range(5):
        rng = np.random.default_rng(draw)
        target, tests = lines(2.0, 4, 5, rng), [([], [], x, 2.0 * x[:, 0]) for x, _ in lines(2.0, 40, 12, rng)]
        sources = {"like": lines(2.0, 6, 5, rng), "unlike": lines(-10.0, 6, 5, rng)}
        fits = {name: WFEMRegressor(**settings).fit(source, target) for name, source in sources.items()}
        fits["none"] = WFEMRegressor(**{**settings, "alpha": 0.0}).fit(sources["like"], target)
        for name, meta in fits.items():
            alphas.setdefault(name, []).append(meta.alpha_)
            errors.setdefault(name, []).append(meta.evaluate(tests).rmse)
    assert np.mean(errors["like"]) < 0.95 * np.mean(errors["none"])
    assert np.mean(alphas["like"]) > 0.15
    assert max(alphas["unlike"]) == 0.0


@pytest.mark.slow
def test_transfer_helps_where_it_should_and_does_not_hurt_where_it_should_not():
    """Five target tasks, three draws each: far better than target-only from a copy, not worse from a far source."""
    ratios = {}
    for deviation in (0.0, 1.0):
        problem, errors = Sinusoid(deviation), {"auto": [], 0.0: []}
        for draw in range(3):
            rng = np.random.default_rng(draw)
            source, target, tests = (
                problem.source_tasks(25, 5, rng), problem.target_tasks(5, 5, rng), problem.test_tasks(60, 5, 20, rng)
            )  # fmt: skip
            for alpha, of_alpha in errors.items():
                paper = {"temperature": "bayes", "training": Training(n_steps=800)}
                meta = WFEMRegressor(alpha=alpha, **paper, random_state=draw).fit(source, target)
                of_alpha.append(meta.evaluate(tests).rmse)
        ratios[deviation] = np.mean(errors["auto"]) / np.mean(errors[0.0])
    assert ratios[0.0] < 0.6
    assert ratios[1.0] < 1.1
