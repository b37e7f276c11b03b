"""The study of covariates of counts, on a few simulated tasks."""

import numpy as np
import pandas as pd
from draw_loop import ResultTable
from response_covariates import CONTEXTS, COVARIATES, SCHEMES, add_ours, summary, with_others
from responses import split_groups

from metaprior.tasks.types import Task


def make_draw(n=16):
    rng, tasks = np.random.default_rng(0), []
    for _ in range(n):
        own = rng.normal(size=3)
        x = np.column_stack([np.arange(4.0), np.tile(own, (4, 1))])
        tasks.append(Task(x, rng.poisson(np.exp(1.0 + own[1]), 4).astype(float)))
    return split_groups(tasks, 0)


def test_useless_covariates_are_those_of_other_tasks_and_constant_within_a_task():
    tasks = make_draw()
    other = with_others(tasks, 0)
    for old, new in ((tasks.target, other.target), (tasks.test, other.test)):
        given, found = (np.array([task[-2][0, COVARIATES] for task in each]) for each in (old, new))
        assert not np.array_equal(given, found)
        np.testing.assert_array_equal(np.sort(given, axis=0), np.sort(found, axis=0))
    for test in other.test:
        assert (np.concatenate([test.x_context, test.x_query])[:, COVARIATES] == test.x_query[0, COVARIATES]).all()


def test_every_scheme_is_scored_with_both_contexts_and_compared_with_the_first():
    table, tasks = ResultTable(None, ("model", "columns", "context", "draw")), make_draw()
    for scheme in SCHEMES:
        add_ours(table, "poisson", scheme, tasks, 0)
    frame = table.frame()
    assert len(frame) == len(SCHEMES) * len(CONTEXTS)
    assert np.isfinite(frame["log_loss"]).all()
    peer = frame[frame["columns"].isin(["without", "with"])].assign(model="GPBoost, poisson")
    rows = summary(pd.concat([frame, peer]))
    first = {row["context"]: row for row in rows if row["model"] == "metaprior, poisson" and row["columns"] == "with"}
    for context in CONTEXTS:
        loss = frame[frame["context"] == context].set_index("columns")["log_loss"]
        assert abs(first[context]["from_without"] - (loss["with"] - loss["without"])) < 1e-3
        assert first[context]["from_gpboost_with"] == 0.0
