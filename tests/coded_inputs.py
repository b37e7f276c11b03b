"""Priors with categories and covariates, made without a fit, and inputs of theirs, as codes and as users write them."""

import numpy as np

from hand_made_priors import THREE_SCALES, as_meta, make_prior, make_terms
from metaprior.tasks.categories import ColumnKinds

SORTS = ((True, False), ("rbf", "linear", "poly"), (7.0, 3.0, 5.0, 1.0), ("e", "d", "c", "b", "a"))  # 2 to 5 levels
MIXED = ColumnKinds((0, 3, 0, 2, 0), (3, 4))  # inputs: a number, a category, a number; covariates: a bool, a number
NAMES = ("C", "kernel", "gamma", "sparse", "size")


BENT = make_terms("curve", "deviation", "shift", "bend")
TERMS = BENT, make_terms()


def make_mixed(kinds=MIXED, terms=TERMS, scales=THREE_SCALES, x_map=False, names=None):
    """Return an estimator whose columns have these kinds, with one member for each of these terms."""
    priors = [make_prior(each, scales=scales, seed=i, x_map=x_map, kinds=kinds) for i, each in enumerate(terms)]
    levels = tuple(SORTS[n - 2] if n else None for n in kinds.levels)
    return as_meta(*priors, spread=1.3, levels=levels, covariates=kinds.covariates, names=names)


def draw_codes(rng, kinds, n):
    """Return inputs (n, columns) of a task, with codes of levels, and covariates that are the same in all rows."""
    columns = [rng.integers(0, levels, n) if levels else rng.normal(size=n) for levels in kinds.levels]
    x = np.column_stack(columns).astype(float)
    x[:, kinds.covariates] = x[:1, kinds.covariates]
    return x


def as_cells(meta, x):
    """Return inputs with the levels that codes stand for, as `adapt` takes them; a missing value is None."""
    cells = np.array(x.tolist(), object).reshape(x.shape)
    for place, cell in np.ndenumerate(cells):
        levels = meta.column_levels_[place[1]]
        cells[place] = None if np.isnan(cell) else cell if levels is None else levels[int(cell)]
    return cells
