"""The default on the sinusoid if the noise is learned: no source and 5 to 30 target tasks, then 25 source tasks and 5.

Prints mean RMSE with its standard error, NLL, coverage of 90% intervals, and how many of 30 draws end in a poor mode
of theta (an RMSE above 0.4). The draws are those of `choosing_alpha.py`.
"""

import numpy as np
from draw_loop import sinusoid_draw

from metaprior import MetaGPRegressor

N_DRAWS, POOR = 30, 0.4
DEVIATIONS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


def report(name, alpha, n_source, n_target, deviation, key):
    scores = []
    for seed in range(N_DRAWS):
        tasks = sinusoid_draw(deviation, n_source, n_target, [seed, *key])
        meta = MetaGPRegressor(alpha, random_state=seed, progress=False).fit(tasks.source, tasks.target)
        result = meta.evaluate(tasks.test)
        scores.append((result.rmse, result.nll, result.coverage))
    rmse, nll, coverage = np.array(scores).T
    error = rmse.std(ddof=1) / N_DRAWS**0.5
    poor = (rmse > POOR).sum()
    print(f"{name}: {rmse.mean():.3f} ± {error:.3f}, {nll.mean():.2f}, {coverage.mean():.3f}, {poor}", flush=True)


if __name__ == "__main__":
    for n in (5, 10, 15, 30):
        report(f"{n} target tasks", 0.0, 0, n, 0.75, [n])
    for deviation in DEVIATIONS:
        for alpha in ("auto", 0.0):
            report(f"deviation {deviation}, alpha {alpha}", alpha, 25, 5, deviation, [5, round(100 * deviation)])
