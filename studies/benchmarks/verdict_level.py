"""How often the transfer report says "The source helps" if no candidate has any effect.

    python studies/benchmarks/verdict_level.py [--reports 2000]

The gains of the candidates over target-only have mean zero and are independent between tasks. They are normal and
correlated between candidates, or skewed: 1 - e with e from the exponential distribution, the same for all candidates.
Prints a row for every setting: percent of reports that say so, and its standard error.
"""

import argparse

import numpy as np

from metaprior.search.averaging import Candidate, Choice, averaging_weights, select_weights
from metaprior.search.report import make_report
from metaprior.wfem.settings import Settings


def level(n_tasks: int, n_sources: int, correlation: float, spread: float, n_reports: int, skewed: bool) -> float:
    """Return the frequency of "The source helps"."""
    rng = np.random.default_rng([n_tasks, n_sources, int(10 * correlation), int(10 * spread)])
    alphas = np.linspace(0.0, 1.0, n_sources + 1)
    candidates = [Candidate((alpha, 1.0 - alpha), Settings()) for alpha in alphas.tolist()]
    said = 0
    for _ in range(n_reports):
        common, own = rng.normal(size=(1, n_tasks)), rng.normal(size=(n_sources, n_tasks))
        common = 1.0 - rng.exponential(size=common.shape) if skewed else common
        gains = spread * (np.sqrt(correlation) * common + np.sqrt(1.0 - correlation) * own)
        scores = np.vstack([np.zeros(n_tasks), gains])
        choice = Choice(candidates, select_weights(averaging_weights(scores), scores, 0), scores)
        said += make_report(choice, ("source", "target"), 1, n_tasks).verdict.startswith("The source helps")
    return said / n_reports


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=2000)
    n_reports = parser.parse_args().reports
    print("target tasks  candidates  correlation  spread of gains  helps, %")
    settings = [(1, 0.0, 1.0), (5, 0.8, 1.0), (5, 0.0, 1.0), (5, 0.0, 5.0), (10, 0.0, 5.0), (1, 1.0, 1.0)]
    for n_tasks in (2, 3, 5, 10, 20):
        for number, (n_sources, correlation, spread) in enumerate(settings):
            skewed = number == len(settings) - 1
            p = level(n_tasks, n_sources, correlation, spread, n_reports, skewed)
            error = np.sqrt(p * (1.0 - p) / n_reports)
            row = f"{n_tasks:12d}  {n_sources:10d}  {correlation:11.1f}  {spread:15.1f}"
            print(f"{row}  {100 * p:.1f} ± {100 * error:.1f}{' (skewed)' * skewed}", flush=True)


if __name__ == "__main__":
    main()
