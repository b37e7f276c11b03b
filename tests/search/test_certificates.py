"""What held-out tasks certify, against scipy's own tests, and the free energy against importance sampling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp
from searches import training_tasks

from metaprior.prior.blocks import make_blocks
from metaprior.prior.families import LINEAR, SMOOTH, fit_families
from metaprior.prior.modes import log_density
from metaprior.search.report import Certificate, certify, free_energy
from metaprior.search.search import Option
from metaprior.tasks.types import Task


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_bound_and_the_sign_test_are_those_of_scipy(counts):
    helped, n = counts
    found, exact = Certificate(helped, 0, n), stats.binomtest(helped, n, 0.5, alternative="greater")
    assert found.p_value == pytest.approx(exact.pvalue)
    assert found.lower_bound == pytest.approx(exact.proportion_ci(0.95, "exact").low)


def test_ties_do_not_help_and_say_nothing_in_the_sign_test():
    found = certify(np.array([0.5, 0.0, -0.1, 0.2, 0.0]))
    assert found == Certificate(2, 2, 5)
    assert found.p_value == pytest.approx(stats.binomtest(2, 3, alternative="greater").pvalue)
    assert found.lower_bound == pytest.approx(stats.binomtest(2, 5, alternative="greater").proportion_ci(0.95).low)
    words = Certificate(17, 0, 20).words
    assert words.startswith("17 of 20 tasks are predicted better; for a new task the chance is at least 65% (95%")
    assert "(2 equally well)" in found.words
    assert Certificate(0, 0, 3).lower_bound == 0.0


def test_the_bound_holds_in_at_least_95_percent_of_independent_samples():
    rng, n, chance = np.random.default_rng(0), 2000, 0.7
    bounds = np.array([Certificate(helped, 0, 15).lower_bound for helped in range(16)])
    holds = np.mean(bounds[rng.binomial(15, chance, n)] <= chance)
    assert holds > 0.95 - 3 * np.sqrt(0.95 * 0.05 / n)


def test_the_free_energy_is_minus_the_log_integral_of_the_gibbs_density():
    rng = np.random.default_rng(0)
    tasks = []
    for _ in range(12):
        x = rng.uniform(-1, 1, 6)
        tasks.append(Task(x[:, None], 3.0 + 5.0 * (rng.normal() + x + 0.3 * rng.normal(size=6))))
    environments = [tasks[:6], tasks[6:]]
    training = training_tasks(environments, 1, Option((0.3, 0.7)))
    fit = fit_families(training, False, None)
    mode, prior = fit.modes[LINEAR], fit.priors[LINEAR]
    blocks = make_blocks(training.tasks, training.counts, training.is_target, prior.terms.points, mode.layout.columns)
    # Importance sampling of theta from a wide normal around the mode, with all constants.
    proposal = stats.multivariate_normal(mode.theta, 2.0 * mode.inverse_hessian)
    draws = proposal.rvs(4000, random_state=1)
    n = float(training.counts @ [len(task.y) for task in training.tasks])
    hyper = -np.sum(np.log(mode.layout.spread)) - 0.5 * len(mode.theta) * np.log(2 * np.pi)
    values = [log_density(mode.layout, each, blocks, prior.terms.points, gradient=False).value for each in draws]
    log_z = (
        logsumexp(np.array(values) - proposal.logpdf(draws)) - np.log(len(draws)) + hyper - n / 2 * np.log(2 * np.pi)
    )
    expected = -log_z / n + np.log(prior.scaling.y_std)
    only = type(fit)({LINEAR: prior}, {LINEAR: mode})
    assert free_energy(only, environments) == pytest.approx(expected, abs=0.02)
    both = free_energy(fit, environments)
    assert both <= free_energy(only, environments)
    assert SMOOTH in fit.modes
    assert np.isnan(free_energy(type(fit)({}, {}), environments))
