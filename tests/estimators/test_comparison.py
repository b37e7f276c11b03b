"""`compare`: a prior beside a mixed model, a hierarchical GP and models of each task, and what it gains over them."""

import numpy as np
import pytest
from sklearn.utils import Bunch

from metaprior import InvalidFile, MetaGPClassifier, MetaGPRegressor, load
from metaprior.datasets import Sinusoid
from metaprior.estimators.comparison import Comparison, gain_in_words, score_per_task_gp
from metaprior.files import read_tensors, write_tensors
from metaprior.metrics import report
from metaprior.search import numbers
from metaprior.wfem import Training, WFEMRegressor

PROBLEM = Sinusoid(0.5)
SOURCE, TARGET = PROBLEM.source_tasks(8, 5, 0), PROBLEM.target_tasks(5, 5, 1)
TESTS = PROBLEM.test_tasks(6, 4, 8, 2)
OTHERS = ["mixed model", "hierarchical GP", "GP per task"]


@pytest.fixture(scope="module")
def meta():
    return MetaGPRegressor(random_state=0).fit(SOURCE, TARGET)


def test_scores_are_those_of_evaluate_and_gains_are_paired(meta):
    compared = meta.compare(TESTS, coverage=0.8)
    assert list(compared.scores) == ["metaprior", *OTHERS]
    ours = meta.evaluate(TESTS, coverage=0.8)
    assert compared.scores["metaprior"].nll == ours.nll
    assert compared.scores["GP per task"].coverage == score_per_task_gp(TESTS, 0.8).coverage
    assert compared.missing == ""
    for name in OTHERS:
        difference = compared.scores[name].per_task.nll - ours.per_task.nll
        assert compared.gains[name].nll == pytest.approx(difference.mean())
        assert compared.gains[name].nll_se == pytest.approx(difference.std(ddof=1) / np.sqrt(6))
    shown = repr(compared).splitlines()
    assert len(shown) == 1 + 1 + 4 + 3
    assert max(map(len, shown)) <= 120
    assert all(sentence in shown for sentence in compared.sentences)


def test_the_mixed_model_is_what_users_would_fit():
    """Lines that fan out from one point: intercept and slope at the mean of x are almost the same number.

    An ordinary mixed model, with correlated intercept and slope, has an RMSE of 0.69; without the correlation, 1.0.
    """

    def draw(n_tasks, rng):
        t, u, v = rng.uniform(0, 10, (n_tasks, 5)), *rng.normal(size=(2, n_tasks, 1))
        y = 5 + 0.3 * u + (1 + 0.5 * v) * t + 0.5 * rng.normal(size=t.shape)
        return [(t[i, :, None], y[i]) for i in range(n_tasks)]

    rng = np.random.default_rng(0)
    meta = MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=draw(40, rng))
    assert meta.compare(draw(100, rng), context=2).scores["mixed model"].rmse < 0.8


def test_tasks_are_split_as_by_evaluate(meta):
    tasks = PROBLEM.target_tasks(4, 9, 5)
    expected = meta.evaluate(tasks, context=3)
    assert meta.compare(tasks, context=3).scores["metaprior"].nll == expected.nll


def test_a_prior_with_conformal_intervals_has_a_column_that_others_lack():
    tasks = PROBLEM.target_tasks(9, 5, 3)
    meta = MetaGPRegressor(context=3, conformal=True, random_state=0).fit(target_tasks=tasks)
    shown = repr(meta.compare(TESTS)).splitlines()
    assert shown[1].split() == ["rmse", "nll", "coverage", "conformal", "coverage"]
    assert all(line.endswith(" -") for line in shown[3:6])
    assert not shown[2].endswith(" -")


def test_without_context_pooled_models_still_compare(meta):
    compared = meta.compare([([], [], test[2], test[3]) for test in TESTS])
    assert list(compared.scores) == ["metaprior", "mixed model", "hierarchical GP"]
    assert compared.missing == "Without context there is no GP per task to compare with."


def test_baselines_are_saved_with_the_prior(meta, tmp_path):
    meta.save(tmp_path / "prior")
    assert repr(load(tmp_path / "prior").compare(TESTS)) == repr(meta.compare(TESTS))


def test_files_of_earlier_versions_have_no_baselines(meta, tmp_path):
    meta.save(tmp_path / "prior")
    header, tensors = read_tensors(tmp_path / "prior")
    del header["baselines"]
    write_tensors(tmp_path / "prior", header, tensors)
    loaded = load(tmp_path / "prior")
    assert list(loaded.compare(TESTS).scores) == ["metaprior", "GP per task"]
    assert "no mixed model and no hierarchical GP" in loaded.compare(TESTS).missing


@pytest.mark.parametrize(
    "damage",
    [
        lambda header, tensors: header.update(baselines=[]),
        lambda header, tensors: header["baselines"]["mixed model"].pop("members"),
        lambda header, tensors: header["baselines"]["mixed model"].update(members=[{}]),
        lambda header, tensors: tensors.pop("baseline0.member0.theta"),
        lambda header, tensors: tensors.update({"baseline1.member0.weights": np.full(3, np.nan)}),
    ],
)
def test_damaged_baselines_are_refused(meta, tmp_path, damage):
    meta.save(tmp_path / "prior")
    header, tensors = read_tensors(tmp_path / "prior")
    damage(header, tensors)
    write_tensors(tmp_path / "prior", header, tensors)
    with pytest.raises(InvalidFile):
        load(tmp_path / "prior")


def test_priors_of_networks_say_what_they_lack():
    meta = WFEMRegressor("rbf", "constant", alpha=0.0, training=Training(n_steps=0), random_state=0)
    compared = meta.fit(target_tasks=TARGET).compare(TESTS)
    assert list(compared.scores) == ["metaprior", "GP per task"]
    lacking = "This prior has no mixed model and no hierarchical GP to compare with"
    assert compared.missing == f"{lacking}: priors of MetaGPRegressor have them."


def test_a_model_that_could_not_be_fitted_is_named(monkeypatch):
    def fail(*_):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(numbers, "fit_mixed_model", fail)
    compared = MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=TARGET).compare(TESTS)
    assert list(compared.scores) == ["metaprior", "hierarchical GP", "GP per task"]
    assert compared.missing == "This prior has no mixed model to compare with: it could not be fitted."


def test_labels_are_compared_with_models_of_each_task():
    rng = np.random.default_rng(0)
    tasks = [(x := rng.normal(size=(8, 1)), np.where(x[:, 0] > shift, "up", "down")) for shift in (-0.5, 0.0, 0.5, 0.2)]
    meta = MetaGPClassifier(random_state=0).fit(target_tasks=tasks)
    tests = [(x[:4], y[:4], x[4:], y[4:]) for x, y in tasks]
    compared = meta.compare(tests)
    assert list(compared.scores) == ["metaprior", "nearest class mean", "logistic regression"]
    assert compared.scores["metaprior"].log_loss == meta.evaluate(tests).log_loss
    assert set(compared.gains["logistic regression"]) == {"log_loss", "log_loss_se", "brier", "brier_se"}
    assert compared.sentences[1].startswith("metaprior's log loss is ")
    assert "than that of logistic regression on 4 tasks" in compared.sentences[1]
    none = meta.compare([(x[:0], y[:0], x, y) for x, y in tasks])
    assert (list(none.scores), none.sentences) == (["metaprior"], [])


@pytest.mark.parametrize(
    ("gain", "error", "n_tasks", "said"),
    [
        (0.123, 0.03, 20, "metaprior's NLL is 0.123 ± 0.03 lower than that of the mixed model on 20 tasks."),
        (-0.2, 0.05, 20, "metaprior's NLL is 0.2 ± 0.05 higher than that of the mixed model on 20 tasks."),
        (0.1, 0.06, 20, "lower than that of the mixed model on 20 tasks, which is no clear difference."),
        (0.3, 0.1, 2, "on 2 tasks, which is no clear difference."),  # 12.7 standard errors would be clear
        (0.3, np.nan, 1, "NLL is 0.3 lower than that of the mixed model on 1 task, which is no clear difference."),
        (0.3, None, 1, "on 1 task, which is no clear difference."),  # as files have it
    ],
)
def test_gains_in_words(gain, error, n_tasks, said):
    assert gain_in_words("mixed model", {"nll": gain, "nll_se": error}, n_tasks).endswith(said)


def test_a_model_that_is_as_good_gains_nothing():
    scores = report({"rmse": np.array([1.0, 2.0]), "nll": np.array([0.5, 0.7]), "calibration_error": 0.1})
    gains = Comparison({"metaprior": scores, "other": scores}).gains
    assert gains == {"other": Bunch(rmse=0.0, rmse_se=0.0, nll=0.0, nll_se=0.0)}
