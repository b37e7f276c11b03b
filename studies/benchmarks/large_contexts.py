"""What contexts of thousands of labels lose by being conditioned on some of these, and the time and memory they take.

    python studies/benchmarks/large_contexts.py --classes 2 --labels 5000 --tasks 4
    python studies/benchmarks/large_contexts.py --classes 5 --labels 2500 --tasks 3

Classes of generated tasks follow a common linear rule, deviations from it, and waves of each task's own. With all
labels, 5,000 of two classes take some minutes for each task; `--only-some` leaves that out.
"""

import argparse
import resource
import time
import warnings

import numpy as np

from metaprior import MetaGPClassifier
from metaprior.prior.label_prior import LabelPrior

N_QUERIES = 4000


def draw_tasks(n_tasks, n, n_classes, seed):
    """Draw tasks of two inputs; rules of the tasks differ, and no rule is certain."""
    common = 1.5 * np.random.default_rng(5).normal(size=(2, n_classes))
    rng, tasks = np.random.default_rng(seed), []
    for _ in range(n_tasks):
        rule = common + rng.normal(size=(2, n_classes))
        frequency, phase = 1.5 * rng.normal(size=(2, n_classes)), rng.uniform(0.0, 6.0, n_classes)
        x = rng.normal(size=(n, 2))
        t = x @ rule + 1.5 * np.sin(x @ frequency + phase)
        tasks.append((x, np.argmax(t + rng.gumbel(size=t.shape), axis=1)))
    return tasks


def score(meta, x, y, n):
    """Condition on the first n labels; return accuracy and log loss of the others, and seconds."""
    started = time.monotonic()
    log_p = meta.adapt(x[:n], y[:n]).predict_log_proba(x[n:])
    seconds = time.monotonic() - started
    codes = np.searchsorted(meta.classes_, y[n:])
    return np.mean(np.argmax(log_p, axis=1) == codes), -np.mean(log_p[np.arange(len(codes)), codes]), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--labels", type=int, default=5000)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--only-some", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    training = draw_tasks(20, 40, given.classes, seed=1)
    meta = MetaGPClassifier(0.0, random_state=0, progress=False).fit(target_tasks=training)
    tests = draw_tasks(given.tasks, given.labels + N_QUERIES, given.classes, seed=2)
    some = np.array([score(meta, x, y, given.labels) for x, y in tests])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    used = min(member.most_labels(np.array([given.classes]))[0] for member in meta.model_.members)
    print(f"{given.classes} classes, {len(meta.model_.members)} priors: accuracy, log loss, seconds")
    print(f"{used} of {given.labels} labels: {' '.join(f'{mean:.4f}' for mean in some.mean(axis=0))}, {memory:.2f} GB")
    if given.only_some:
        return
    LabelPrior.most_labels = lambda self, n_classes: np.full(len(n_classes), given.labels)
    every = np.array([score(meta, x, y, given.labels) for x, y in tests])
    print(f"all {given.labels}: {' '.join(f'{mean:.4f}' for mean in every.mean(axis=0))}")
    lost = some[:, :2] - every[:, :2]
    error = lost.std(axis=0, ddof=1) / np.sqrt(len(lost)) if len(lost) > 1 else np.full(2, np.nan)
    print(
        "some - all:", *(f"{mean:+.4f} ± {spread:.4f}" for mean, spread in zip(lost.mean(axis=0), error, strict=True))
    )


if __name__ == "__main__":
    main()
