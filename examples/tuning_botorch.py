"""
# Tuning with BoTorch

**The question.** I have tuned this classifier on other data sets before. Each evaluation on
the new data is expensive, and I can afford ten. Can the old tuning runs save me some of
them?

A task is a data set. Its inputs are two hyper-parameters of scikit-learn's support vector
classifier, its output is the accuracy on rows that were held back. Past runs on ten
generated data sets are the source. Three runs on small samples of handwritten digits are
the target. The new data set is another sample, with digits, rows and pixels drawn anew.
This program needs BoTorch: `pip install "metaprior[botorch]"`.
"""

# %%
# ## Past runs
# Both hyper-parameters span orders of magnitude, so inputs are logarithms to base 10. A
# past run is a random search of 30 settings.

import matplotlib.pyplot as plt
import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import sem
from sklearn import datasets
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from metaprior import MetaGPRegressor
from metaprior.botorch import MetaPriorModel

lower, upper = np.array([-2.0, -5.0]), np.array([4.0, 1.0])  # log10 of C and of gamma


def make_data(X, y, rng, n_fitted=120):
    """Return a function from settings to the accuracy on held-back rows."""
    order = rng.permutation(len(y))
    fitted, held_back = order[:n_fitted], order[n_fitted : n_fitted + 400]
    scaler = StandardScaler().fit(X[fitted])

    def accuracy(setting):
        classifier = SVC(C=10.0 ** setting[0], gamma=10.0 ** setting[1])
        classifier.fit(scaler.transform(X[fitted]), y[fitted])
        return classifier.score(scaler.transform(X[held_back]), y[held_back])

    return accuracy


def sample_digits(seed):
    """Return five of the ten digits, and a quarter of the pixels."""
    rng = np.random.default_rng(seed)
    X, y = datasets.load_digits(return_X_y=True)
    rows, pixels = np.isin(y, rng.permutation(10)[:5]), rng.permutation(64)[:16]
    return make_data(X[rows][:, pixels], y[rows], rng)


def generate(seed):
    """Return a data set with three classes in 5 to 24 dimensions."""
    rng = np.random.default_rng(seed)
    shape = {"n_features": int(rng.integers(5, 25)), "n_informative": 4, "n_classes": 3}
    return make_data(*datasets.make_classification(520, **shape, random_state=seed), rng)


def search_at_random(accuracy, seed, n=30):
    """Return the settings and the accuracies of a past run."""
    settings = np.random.default_rng(seed).uniform(lower, upper, (n, 2))
    return settings, np.array([accuracy(setting) for setting in settings])


source = [search_at_random(generate(seed), seed) for seed in range(10)]
target = [search_at_random(sample_digits(seed), seed) for seed in range(10, 13)]
for settings, accuracies in target:
    best = settings[accuracies.argmax()]
    print(
        f"digits: {accuracies.max():.3f} at C = 10^{best[0]:.1f}, gamma = 10^{best[1]:.1f}"
    )

# %%
# ## The prior as a model of BoTorch
# `MetaPriorModel` is a `Model` of BoTorch, for most acquisition functions. It is given
# the evaluations so far, and nothing is fitted along the way. The first evaluation is the
# best setting of a past run, the others maximize the expected improvement by its gradients.

meta = MetaGPRegressor(random_state=0, progress=False).fit(source, target)
print(meta.transfer_report())
bounds = torch.tensor(np.array([lower, upper]))


def tune(accuracy, first, make_model, n_evaluations=10):
    """Return the settings that were evaluated, and their accuracies."""
    X = torch.as_tensor(np.atleast_2d(first))
    Y = torch.tensor([[accuracy(setting)] for setting in X.numpy()], dtype=torch.float64)
    while len(X) < n_evaluations:
        improvement = LogExpectedImprovement(make_model(X, Y), best_f=Y.max())
        new, _ = optimize_acqf(improvement, bounds, q=1, num_restarts=4, raw_samples=64)
        value = torch.tensor([[accuracy(new[0].numpy())]], dtype=torch.float64)
        X, Y = torch.cat([X, new]), torch.cat([Y, value])
    return X.numpy(), Y.numpy()[:, 0]


def fit_single_task(X, Y):
    """Return BoTorch's default model, which knows nothing of past runs."""
    model = SingleTaskGP(X, Y, input_transform=Normalize(2, bounds=bounds))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


# %%
# ## Six new data sets
# Beside it BoTorch's default model, which begins with five random settings. And a rival
# without any model: try the best settings of past runs, one after another, digits first.

torch.manual_seed(0)
optima = [settings[found.argmax()] for settings, found in target + source][:10]
learned, alone, copied = [], [], []
for seed, accuracy in enumerate(sample_digits(seed) for seed in range(100, 106)):
    learned.append(tune(accuracy, optima[0], lambda X, Y: MetaPriorModel(meta, X, Y)))
    start = np.random.default_rng(seed).uniform(lower, upper, (5, 2))
    alone.append(tune(accuracy, start, fit_single_task))
    copied.append((optima, [accuracy(setting) for setting in optima]))

names = ("metaprior", "past optima, no model", "no past runs")
best_learned, best_copied, best_alone = best = [
    np.maximum.accumulate([found for _, found in runs], axis=1)
    for runs in (learned, copied, alone)
]
print(f"best accuracy after       {'1':>6}{'3':>8}{'5':>8}{'10 evaluations':>17}")
for name, found in zip(names, best, strict=True):
    print(f"{name:24}", *(f"{found[:, n - 1].mean():7.3f}" for n in (1, 3, 5, 10)))
gain = best_learned[:, 4] - best_copied[:, 4]
print(f"after 5, metaprior minus past optima: {gain.mean():+.3f} ± {sem(gain):.3f}")

# %%
# ## The picture
# On the left the best accuracy so far, from 0.76 on: the model without past runs starts far
# below. On the right what the prior expects of the last data set, after three evaluations.

settings, found = learned[-1]
given = torch.as_tensor(settings[:3]), torch.as_tensor(found[:3, None])
axis_C, axis_gamma = (np.linspace(*ends, 50) for ends in zip(lower, upper, strict=True))
grid = np.stack(np.meshgrid(axis_C, axis_gamma), axis=-1)
with torch.no_grad():
    expected = MetaPriorModel(meta, *given).posterior(torch.as_tensor(grid)).mean[..., 0]

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
for name, found, color in zip(names, best, ("#08519c", "#009E73", "#E69F00"), strict=True):
    left.plot(range(1, 11), found.mean(axis=0), "o-", color=color, label=name)
left.set(
    xlabel="evaluations", ylabel="best accuracy so far, mean of six", ylim=(0.76, 0.88)
)
left.legend(frameon=False)
image = right.pcolormesh(axis_C, axis_gamma, expected.numpy())
right.plot(*settings[:3].T, "s", color="#d94801", markeredgecolor="white")
right.set(xlabel="log10 of C", ylabel="log10 of gamma", title="expected accuracy")
figure.colorbar(image, ax=right)
plt.show()

# %%
# The first evaluation has almost all of the gain, and it is a copy of a past optimum: no
# model is needed for that. What metaprior adds comes early and is small. After ten
# evaluations copying is as good here, and on one of the six data sets the model without
# past runs found the best setting of the three. A [study of 30 data sets and two
# classifiers](../results/options.md#bayesian-optimization) measures this, with a model of
# BoTorch that starts at past optima as one of the rivals.
#
# ## What to watch out for
# - **Compare with copying.** Past optima, tried one after another, are a strong rival. If
#   new data sets are all alike, you need no model.
# - **Start from a setting that was good before.** In the study this is a little better than
#   to start at the maximum of the prior's mean.
# - **BoTorch maximizes.** Fit the prior to minus the loss if small outputs are good.
# - **The same hyper-parameters, in the same units, in every run.** Take logarithms before
#   the fit, and search within the range of past runs, `meta.feature_range_`.
# - **Past runs must show the bad settings too.** Runs that list only their best evaluations
#   teach the prior that everything is good.
