"""
# Few-shot images

**The question.** I have five photos of each of three bird species, and photos of many
*other* species and things. Can those teach a classifier what to look at, and are its
probabilities to be trusted?

A task is a choice of three species, with a few photos of each. Its classes occur in no
other task, so there is nothing to learn about wrens. What carries over is which differences
between photos matter. Twenty tasks are known: ten of birds (the target,
[CUB-200-2011](https://data.caltech.edu/records/65de6-vp158)) and ten of everyday things
(the source, mini-ImageNet). The new tasks are of birds that nobody has seen before.
"""

# %%
# ## The data
# Photos as 64 numbers each, the principal components of what an EfficientNet-Lite0
# computes. That network *was trained on ImageNet*, as encoders in practice are, so photos
# of ImageNet are not new to it.

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import sem
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from metaprior import MetaGPClassifier
from metaprior.plots import plot_calibration
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import features

# The next line says what to get if the data are missing.
photos = features("miniimagenet"), features("cub")
problem = FewShot(*photos, ways=3, shots=5, queries=15)
source, target = problem.source_tasks(10, rng=0), problem.target_tasks(10, rng=1)
X, y = target[0]
print(f"a task: {len(y)} photos of {X.shape[1]} numbers, with labels {y.tolist()}")

# %%
# ## The answer
# Labels 0, 1 and 2 stand for other species in every task. `shared_classes=False` says so:
# without it they would be read as the same three classes throughout.

meta = MetaGPClassifier(shared_classes=False, random_state=0).fit(source, target)
test = problem.test_tasks(100, rng=2)
print(meta.evaluate(test))

# %%
# ## Nine photos of a new task
# Give `adapt` any labels; the three names here are made up. Each bar is a photo that the
# classifier has not seen, three of each species. Its colors are the probabilities of the
# three species, and the line below says which it was.

species = np.array(["finch", "gull", "wren"])
X, y, X_new, y_new = test[0]
task = meta.adapt(X, species[y])
probabilities, truth = task.predict_proba(X_new[:9]), species[y_new[:9]]
order = np.argsort(truth, kind="stable")
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
colors, bottom = ("#0072B2", "#E69F00", "#009E73"), np.zeros(9)
for name, column, color in zip(task.classes_, probabilities[order].T, colors, strict=True):
    axes.bar(range(9), column, bottom=bottom, color=color, label=f"probability of {name}")
    bottom += column
axes.set_xticks(range(9), truth[order])
axes.set(xlabel="what it was", ylabel="probability", ylim=(0, 1))
figure.legend(loc="outside lower center", ncols=3, frameon=False)
plt.show()

# %%
# ## Beside logistic regression
# The usual tool for frozen features, fitted to each task alone. Contexts of one to ten
# photos of each species, the same for both. Bars are 95% intervals over 100 tasks.

large = FewShot(*photos, ways=3, shots=10, queries=15).test_tasks(100, rng=3)
shots = (1, 2, 5, 10)
accuracy = {"logistic regression": [], "metaprior": []}
gain = []  # log loss of metaprior minus that of logistic regression, task by task
for n in shots:
    tasks = [(X[: 3 * n], y[: 3 * n], X_new, y_new) for X, y, X_new, y_new in large]
    models = [LogisticRegression().fit(X, y) for X, y, _, _ in tasks]
    queries = [
        (model, X_new, y_new)
        for model, (_, _, X_new, y_new) in zip(models, tasks, strict=True)
    ]
    losses = [log_loss(y, model.predict_proba(X)) for model, X, y in queries]
    scores = meta.evaluate(tasks).per_task
    accuracy["logistic regression"].append([model.score(X, y) for model, X, y in queries])
    accuracy["metaprior"].append(scores["accuracy"])
    gain.append(scores["log_loss"] - losses)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
bars = {"fmt": "o-", "capsize": 3}
for (name, values), color in zip(accuracy.items(), ("#E69F00", "#08519c"), strict=True):
    middle, half = np.mean(values, axis=1), 1.96 * sem(values, axis=1)
    left.errorbar(shots, middle, half, color=color, label=name, **bars)
right.errorbar(
    shots, np.mean(gain, axis=1), 1.96 * sem(gain, axis=1), color="#08519c", **bars
)
right.axhline(0, color="#333333", linestyle="--", linewidth=1)
left.legend(frameon=False)
for axes, label in (
    (left, "accuracy"),
    (right, "paired difference of log loss (nats)"),
):
    axes.set(xlabel="photos of each species", ylabel=label, xscale="log")
    axes.set_xticks(shots, map(str, shots))
    axes.minorticks_off()
plt.show()

# %%
# On the right is the paired difference of the log loss, task by task: below zero metaprior
# is better. In these tasks it is about as much better with ten photos as with one, while in
# accuracy the two hardly differ from five photos on. [Over 32
# draws](../results/classification.md#one-to-ten-samples-two-to-five-classes)
# of two and of five classes metaprior's log loss is lower as well.
#
# ## Are the probabilities right?
# When the classifier says 80%, it should be right in 80 of 100 cases: points on the
# diagonal.

figure, axes = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
plot_calibration(meta, test, axes=axes)
plt.show()

# %%
# ## What to watch out for
# - **The encoder does most of the work.** Priors on raw pixels are [far
#   worse](../results/classification.md#raw-pixels). Take features of a network trained on
#   something like your photos.
# - **One photo of each is too cautious.** The prior is calibrated for contexts of about the
#   size it was trained on, five of each. If you will have one, train on tasks that are as
#   small as you can get.
# - **The new species must be new.** If a species is in the training tasks and in the test,
#   scores flatter.
# - **Shared or own classes.** If labels mean the same in every task (ill, well), leave
#   `shared_classes` alone: then a common rule can be learned as well, see
#   [classification](../guides/classification.md).
