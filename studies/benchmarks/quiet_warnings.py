"""Whether warnings about contexts and known tasks are quiet on honest data: the fifteen data sets of the peers.

    python studies/benchmarks/quiet_warnings.py --draws 3

Draws are those that settings are chosen on (seeds from 1,000,000). All readings of a test task are taken as context.
"""

import argparse
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from metaprior import MetaGPRegressor, load
from metaprior.predict.batches import Posteriors
from metaprior.predict.plausibility import context_errors
from metaprior.tasks.types import Ragged, Task
from metaprior_studies.peers.tables import ENVIRONMENTS

FIRST_SEED = 1_000_000


def recognized(meta, tasks, folder):
    """Shares of the tasks of the fit that are recognized after it, and by its file."""
    meta.save(Path(folder) / "prior.safetensors")
    return [each.fitted_on(tasks).mean() for each in (meta, load(Path(folder) / "prior.safetensors"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "data set, readings, largest error, gap and joint score (standard deviations), tasks taken for known, of; "
        "share of the fit recognized: in memory, from a file"
    )
    for name, environment in ENVIRONMENTS.items():
        errors, gaps, joint, n_wrong, n_tests, known = [], [], [], 0, 0, []
        for seed in range(given.first_seed, given.first_seed + given.draws):
            drawn = environment.draw(seed)
            meta = MetaGPRegressor(random_state=seed, progress=False).fit(list(drawn.source), list(drawn.target))
            tests = [Task(np.concatenate(test[::2]), np.concatenate(test[1::2])) for test in drawn.test]
            x, y = Ragged.of([test.x for test in tests], (meta.n_features_in_,)), Ragged.of([test.y for test in tests])
            found = context_errors(Posteriors(meta.model_, x, y))
            errors.append(found.errors)
            gaps.append(found.gaps)
            joint.append(found.joint)
            n_wrong, n_tests = n_wrong + int(meta.fitted_on(tests).sum()), n_tests + len(tests)
            with TemporaryDirectory() as folder:
                known.append(recognized(meta, [*drawn.source, *drawn.target], folder))
        largest = [np.concatenate(each).max() for each in (errors, gaps, joint)]
        shares = " ".join(f"{share:.3f}" for share in np.mean(known, axis=0))
        n_readings = sum(map(len, errors))
        print(
            f"{name:15s} {n_readings:6d} {largest[0]:5.2f} {largest[1]:5.2f} {largest[2]:5.2f}",
            f" {n_wrong}/{n_tests}  {shares}",
            flush=True,
        )


if __name__ == "__main__":
    main()
