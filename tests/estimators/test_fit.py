"""The default through the estimator: what it compares, what it keeps, and files."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from metaprior import InvalidFile, MetaGPClassifier, MetaGPRegressor, load
from metaprior.datasets import Sinusoid
from metaprior.estimators import fit
from metaprior.estimators.fit import MAX_READINGS, MAX_TASKS
from metaprior.files import read_tensors, write_tensors
from metaprior.prior.families import FAMILIES
from metaprior.search import compare
from metaprior.search.problems import Numbers
from metaprior.search.search import Search
from metaprior.tasks.types import Task

PROBLEM = Sinusoid(deviation=0.25)
X = np.linspace(-4.0, 4.0, 7)[:, None]


def tasks_of(n_source, n_target, n_samples=6):
    return PROBLEM.source_tasks(n_source, n_samples, rng=0), PROBLEM.target_tasks(n_target, n_samples, rng=1)


def fitted(*tasks, **arguments):
    return MetaGPRegressor(**{"random_state": 0, "progress": False, **arguments}).fit(*tasks)


@pytest.fixture(scope="module")
def meta():
    return fitted(*tasks_of(8, 3))


def predictions(meta, context):
    return np.stack(meta.adapt(*context).predict(X, return_std=True))


def test_alpha_is_chosen_by_default():
    assert MetaGPRegressor().alpha == MetaGPClassifier().alpha == "auto"


def test_report_has_six_options_and_all_families(meta):
    report = meta.transfer_report()
    np.testing.assert_allclose(report.alpha, [0, 0.8 / 3.8, 3.2 / 6.2, 8 / 11, 3.2 / 6.2, 8 / 11])
    assert report.environment_effect.tolist() == [False] * 4 + [True] * 2
    assert list(report.families) == list(FAMILIES) == list(meta.family_weights_)
    assert sum(meta.family_weights_.values()) == pytest.approx(1.0)
    assert meta.family_ == max(meta.family_weights_, key=meta.family_weights_.get)
    text = str(report)
    assert text.count("own mean") == 2
    assert "Weights of the families of priors" in text
    assert "Left out" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(meta.model_.members) <= 6


def test_a_family_that_was_not_fitted_is_named():
    report = fitted([], PROBLEM.target_tasks(3, 4, rng=1)).transfer_report()
    report.families.pop("shapes")
    assert "could not be fitted: shapes" in str(report).replace("\n", " ")


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.0, [0.0]), (0.5, [0.5]), (1.0, [1.0]), ("pooled", [8 / 11]), ([0.0, 0.4], [0.0, 0.4])]
)
def test_alpha_given(alpha, expected):
    meta = fitted(*tasks_of(8, 3), alpha=alpha)
    np.testing.assert_allclose(meta.transfer_report().alpha, expected)
    assert meta.transfer_report().environment_effect is None
    assert np.isfinite(predictions(meta, PROBLEM.target_tasks(1, 4, rng=5)[0])).all()


@pytest.mark.parametrize("n_target", [1, 3])
def test_target_only_is_not_changed_by_the_source(n_target):
    source, target = tasks_of(4, n_target)
    other = PROBLEM.source_tasks(6, 9, rng=7)
    context = PROBLEM.target_tasks(1, 3, rng=5)[0]
    first, second = (predictions(fitted(tasks, target, alpha=0.0), context) for tasks in (source, other))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(("n_source", "n_target"), [(4, 1), (4, 0), (0, 1), (1, 0), (0, 2), (1, 1)])
def test_few_tasks(n_source, n_target):
    with pytest.warns(UserWarning, match="alpha is 1") if not n_target else _nothing():
        meta = fitted(*tasks_of(n_source, n_target))
    assert np.isfinite(predictions(meta, PROBLEM.target_tasks(1, 3, rng=5)[0])).all()
    assert np.isfinite(meta.adapt([], []).predict(X)).all()
    if n_target < 2:
        assert meta.transfer_report().score is None
    assert list(meta.family_weights_) == list(FAMILIES)
    assert meta.alpha_ == pytest.approx({0: 1.0, 1: meta.alpha_, 2: 0.0}[n_target])


class _nothing:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        return False


def test_a_flexible_family_does_not_win_on_lines():
    """Its covariance must not have seen the held-out tasks: it would fit them too well, and bands be too narrow."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(52, 5, 4))
    slopes = rng.normal(1.0, 0.5, (52, 4, 1))
    y = (x @ slopes)[..., 0] + 0.3 * rng.normal(size=(52, 5))
    meta = fitted([], [Task(*task) for task in zip(x, y, strict=True)])
    assert meta.family_weights_["shapes"] < 0.5


def test_several_sources_are_compared_alone_and_combined():
    copy, target = PROBLEM.target_tasks(4, 5, rng=3), PROBLEM.target_tasks(3, 5, rng=1)
    rng = np.random.default_rng(0)
    noise = [Task(rng.uniform(-5, 5, (5, 1)), rng.normal(5.0, 5.0, 5)) for _ in range(4)]
    meta = MetaGPRegressor(random_state=0, progress=False).fit(
        {"copy": copy, "noise": noise, "here": target}, target="here"
    )
    report = meta.transfer_report()
    assert len(report.weight) >= 12  # six of all sources, three of each alone
    of_copy, of_noise, _ = meta.environment_weights_
    assert of_copy > of_noise


def test_search_time_still_compares_the_first_option():
    with pytest.warns(UserWarning, match=r"search_time of 1e-09 s ended .* of the first 1 environment weights only"):
        meta = fitted(*tasks_of(8, 3), search_time=1e-9)
    assert meta.transfer_report().alpha.tolist() == [0.0]


@pytest.mark.parametrize(("seconds", "kept"), [(2.0, 6), (15.0, 6), (30.0, 12), (1e6, 24)])
def test_a_search_grows_for_as_long_as_there_is_time(monkeypatch, seconds, kept):
    """Six tasks first, then twice as many; here a comparison takes a hundredth of a second times its cost."""
    clock = [0.0]
    sample = [[Task(np.zeros((30, 1)), np.arange(30.0))] * 24]
    compared = compare.Compared(Search(Numbers(), sample, 0, 0, 0), sample, True, False)

    def timed(asked, sample, *_):
        clock[0] += 0.01 * compare._cost(sample)
        return compared._replace(sample=sample)

    monkeypatch.setattr(compare, "FIRST_TASKS", 6)
    monkeypatch.setattr(compare, "FIRST_READINGS", 8)
    monkeypatch.setattr(compare, "_compare_on", timed)
    monkeypatch.setattr(compare.time, "monotonic", lambda: clock[0])
    cost = [compare._cost(part) for part in compare._growing(sample, 0)]
    assert cost == [6 * 8**2, 12 * 11**2, 24 * 16**2, 24 * 22**2, 24 * 30**2]
    asked = compare.Asked(Numbers(), ("here",), 0, search_time=seconds)
    with pytest.warns(UserWarning, match=f"made on {kept} of 24 tasks") if kept < 24 else nullcontext():
        found = compare._compare(asked, sample, 0)
    assert len(found.sample[0]) == kept
    assert clock[0] <= max(seconds, 0.01 * cost[0])


def test_every_phase_of_a_fit_is_labeled_and_counted(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("COLUMNS", "200")
    fitted(*tasks_of(3, 3), progress=True)
    shown = capsys.readouterr().err
    for label in ("1/3 comparing environment weights", "2/3 averaging predictions", "3/3 learning the common mean"):
        assert label in shown
    assert "on 6 tasks" in shown


def test_many_tasks_and_long_tasks_are_sampled_and_the_mean_sees_all(monkeypatch):
    monkeypatch.setattr(fit, "MAX_TASKS", 5)
    monkeypatch.setattr(fit, "CHUNK_TASKS", 4)
    tasks = [*PROBLEM.target_tasks(11, 4, rng=1), *PROBLEM.target_tasks(1, MAX_READINGS + 50, rng=2)]
    sample = fit._sample([[], tasks], 0)
    assert [len(group) for group in sample] == [0, 5]
    assert max(len(task.y) for task in sample[1]) <= MAX_READINGS
    meta = fitted([], tasks, alpha=0.0)
    assert meta.transfer_report().n_target_tasks == 5
    sampled = [fitted([], sample[1], alpha=0.0).model_.members[0]]
    assert not np.array_equal(meta.model_.members[0].terms.weights[:2], sampled[0].terms.weights[:2])
    assert MAX_TASKS == 300
    n, used = sum(len(task.y) for task in tasks), meta.training_["environments"]["target"]
    assert used["samples"] == n == 11 * 4 + MAX_READINGS + 50
    assert (used["tasks"], used["used_tasks"], used["used_samples"]) == (12, 5, sum(len(task.y) for task in sample[1]))
    assert repr(meta).endswith(f", using {used['used_samples']} of {n} readings")
    whole = fitted([], tasks[:5], alpha=0.0)
    assert whole.training_["environments"]["target"] == {"tasks": 5, "samples": 20}
    assert "using" not in repr(whole)


def test_the_same_seed_gives_the_same_prior_and_files_keep_it(meta, tmp_path):
    context = PROBLEM.target_tasks(1, 4, rng=5)[0]
    expected = predictions(meta, context)
    np.testing.assert_array_equal(predictions(fitted(*tasks_of(8, 3)), context), expected)
    meta.save(tmp_path / "prior.safetensors")
    again = load(tmp_path / "prior.safetensors")
    np.testing.assert_array_equal(predictions(again, context), expected)
    assert str(again.transfer_report()) == str(meta.transfer_report())
    assert (again.family_weights_, again.family_, again.alpha_) == (meta.family_weights_, meta.family_, meta.alpha_)
    assert again.model_.spread == meta.model_.spread
    again.save(tmp_path / "again.safetensors")
    (header, tensors), (header_again, tensors_again) = (
        read_tensors(tmp_path / f"{name}.safetensors") for name in ("prior", "again")
    )
    assert header_again == header
    assert tensors_again.keys() == tensors.keys()
    assert all(np.array_equal(tensors_again[name], tensors[name]) for name in tensors)


def test_one_task_equals_many(meta):
    tests = [PROBLEM.target_tasks(1, n, rng=n)[0] for n in (1, 3, 8)]
    together = meta.adapt_many(tests).predict(X, return_std=True)
    for i, task in enumerate(tests):
        alone = meta.adapt(*task).predict(X, return_std=True)
        np.testing.assert_allclose([part[i] for part in together], alone, rtol=1e-9)
    mean, covariance = meta.adapt(*tests[1]).predict(X, return_cov=True)
    np.testing.assert_allclose(mean, together[0][1], rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), together[1][1], rtol=1e-7)


DAMAGES = {
    "description": lambda header, _: header["members"][0]["terms"].append({"name": "environment"}),
    "unknown term": lambda header, _: header["members"][0]["terms"].append({"name": "other"}),
    "inputs": lambda header, _: header.update(input_dim=2),
    "no model": lambda header, _: header.pop("members"),
    "shape": lambda _, tensors: tensors.update({"member0.weights": tensors["member0.weights"][:-1]}),
    "NaN": lambda _, tensors: tensors["member0.weights_root"].fill(np.nan),
    "precision": lambda _, tensors: tensors.update({"member0.points": tensors["member0.points"].astype(np.float32)}),
}  # tests/attack/test_prior_files.py has more


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_files_are_refused(meta, tmp_path, damage):
    path = tmp_path / "prior.safetensors"
    meta.save(path)
    header, tensors = read_tensors(path)
    tensors = {name: np.array(tensor) for name, tensor in tensors.items()}
    damage(header, tensors)
    write_tensors(path, header, tensors)
    with pytest.raises(InvalidFile):
        load(path)


def test_files_hold_no_code(meta, tmp_path):
    meta.save(tmp_path / "prior.safetensors")
    with safe_open(tmp_path / "prior.safetensors", "numpy") as file:
        metadata = file.metadata()
        assert all(json.loads(value) is not None for value in metadata.values() if value.startswith("{"))
        save_file({name: file.get_tensor(name) for name in file.keys()}, tmp_path / "plain")  # noqa: SIM118
