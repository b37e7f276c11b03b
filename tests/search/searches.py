"""Searches of numbers with tasks of one environment held out."""

from metaprior.search.numbers import Numbers
from metaprior.search.search import Search


def search_for(environments, target=1, seed=0, held_out=None, problem=Numbers(), **settings):  # noqa: B008
    return Search(problem, environments, target, seed, target if held_out is None else held_out, **settings)


def training_tasks(environments, target, option, sizes=None):
    return Numbers().training(environments, target, option, None, sizes)
