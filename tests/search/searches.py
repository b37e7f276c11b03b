"""Searches with tasks of one environment held out, and problems whose fits fail."""

from dataclasses import replace
from typing import Any

from metaprior.search.averaging import discounted
from metaprior.search.numbers import Numbers
from metaprior.search.search import Option, Search


def search_for(environments, target=1, seed=0, held_out=None, problem=Numbers(), **settings):  # noqa: B008
    return Search(problem, environments, target, seed, target if held_out is None else held_out, **settings)


def training_tasks(environments, target, option, sizes=None):
    return Numbers().training(environments, target, option, None, sizes)


def options_of(environments, discounts, **settings):
    """Return environment weights with the source discounted."""
    counts = [len(tasks) for tasks in environments]
    return [Option(discounted(counts, 1, r), **settings) for r in discounts]


class Failing:
    """A problem like another, whose fits lack a family where `fails(call, name)`, with calls counted from one."""

    def __init__(self, problem: Any, fails: Any):
        self.problem, self.fails, self.n_calls = problem, fails, 0

    def __getattr__(self, name):
        return getattr(self.problem, name)

    def fit(self, *given, **settings):
        self.n_calls += 1
        found = self.problem.fit(*given, **settings)
        return replace(found, priors={n: p for n, p in found.priors.items() if not self.fails(self.n_calls, n)})
