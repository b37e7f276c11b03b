"""The parameter `context`: cross-validation and `evaluate` ask for what users ask for."""

import numpy as np
import pytest

from metaprior import MetaGPClassifier, MetaGPRegressor, load, predict_frame
from metaprior.search import held_out, numbers
from metaprior.tasks.splits import ContextRule, split_once
from metaprior.tasks.types import Task
from metaprior.wfem import Training, WFEMRegressor

RNG = np.random.default_rng(0)


def random_walk(n=16):
    """A task whose future is much less certain than its gaps."""
    x = np.arange(float(n))
    return x[:, None], np.cumsum(RNG.normal(size=n))


WALKS = [random_walk() for _ in range(24)]


@pytest.fixture(scope="module")
def fitted():
    rules = ("random", ("first", 5))
    return {rule: MetaGPRegressor(context=rule, random_state=0).fit(WALKS[:12], WALKS[12:20]) for rule in rules}


def test_the_search_splits_held_out_tasks_by_the_rule(monkeypatch):
    seen = []
    make = held_out.make_folds

    def spy(*arguments):
        made = make(*arguments)
        seen.extend(split for of_task in made.splits for split in of_task)
        return made

    monkeypatch.setattr(numbers, "make_folds", spy)
    MetaGPRegressor(alpha=0.0, context=("first", 3), random_state=0).fit(target_tasks=WALKS[:4])
    assert len(seen) == 4
    assert all(len(split.y_context) == 3 for split in seen)
    assert all(split.x_context.max() < split.x_query.min() for split in seen)


def test_bands_of_forecasts_are_calibrated_on_forecasts(fitted):
    """Interpolation of a random walk is easy; a band that is calibrated on it says too little about its future."""
    reports = {rule: meta.transfer_report() for rule, meta in fitted.items()}
    assert reports["first", 5].score.max() < reports["random"].score.max() - 0.2


def test_evaluate_splits_pairs_as_told(fitted):
    meta, tasks = fitted["random"], WALKS[20:]
    by_hand = [split_once(Task(*task), ContextRule("first", 5), np.random.default_rng(0)) for task in tasks]
    assert meta.evaluate(tasks, context="first 5").rmse == meta.evaluate(by_hand).rmse
    assert meta.evaluate(tasks, context=("first", 5)).rmse > meta.evaluate(tasks, context=8).rmse  # futures are harder
    with pytest.raises(ValueError, match=r"test_tasks\[0\]: A context of 16 leaves no reading"):
        meta.evaluate(tasks, context=16)
    with pytest.raises(ValueError, match="context must be"):
        meta.evaluate(tasks, context="last")


def test_a_prior_of_forecasts_says_so_if_the_past_is_asked_for(fitted):
    x, y = WALKS[20]
    with pytest.warns(UserWarning, match="5 of 11 queries are not forecasts"):
        fitted["first", 5].evaluate([(x[5:10], y[5:10], np.delete(x, range(5, 10), 0), np.delete(y, range(5, 10)))])
    query = {"x": [0.0, 15.0]}
    with pytest.warns(UserWarning, match="1 of 2 queries are not forecasts"):
        predict_frame(fitted["first", 5], {"x": x[:5, 0], "y": y[:5]}, query, x="x", y="y")


def test_the_rule_is_saved_and_checked(fitted, tmp_path):
    fitted["first", 5].save(tmp_path / "prior")
    again = load(tmp_path / "prior")
    assert tuple(again.parameters_["context"]) == ("first", 5)
    with pytest.raises(ValueError, match="context must be"):
        MetaGPRegressor(context="later").fit(WALKS[:3], WALKS[3:6])


def test_labels_are_split_by_the_rule_too():
    x = np.linspace(-1.0, 1.0, 12)[:, None]
    tasks = [(x, np.where(x[:, 0] > shift, "b", "a")) for shift in np.linspace(-0.5, 0.5, 8)]
    meta = MetaGPClassifier(context=("first", 6), random_state=0).fit(target_tasks=tasks)
    assert meta.evaluate(tasks[:3], context=("first", 6)).n_tasks == 3


def test_gradient_training_compares_by_the_rule():
    settings = {"training": Training(n_steps=4, progress=False), "temperature": "bayes", "random_state": 0}
    tasks = [(x[:6], y[:6]) for x, y in WALKS[:8]]
    scores = []
    for context in ("random", ("first", 2)):
        meta = WFEMRegressor("rbf", "constant", alpha=[0.0, 0.5], context=context, **settings).fit(tasks[:4], tasks[4:])
        scores.append(meta.transfer_report().score)
    assert (scores[1] < scores[0]).all()  # the future of a walk is harder to predict than half of it at random


def test_whole_tasks_without_a_context_are_told_about_it(fitted):
    for score in (fitted["random"].evaluate, fitted["random"].compare, fitted["random"].score):
        with pytest.raises(ValueError, match=r"test_tasks\[0\] must be .*got 2 parts\. For whole tasks.* context=5"):
            score(WALKS[20:])
