"""How long `fit` takes: N=30 tasks of M=5 samples, 2000 full-batch steps, the paper's networks; alpha given and chosen.

    python studies/benchmarks/fit_time.py

A few minutes on 2 cores.
"""

import platform
import time

import jax
import numpy as np

from metaprior.datasets import Sinusoid
from metaprior.wfem import Gaussian, Training, WFEMRegressor


def main(n_repeats: int = 5):
    environment = Sinusoid(0.5)
    source, target = environment.source_tasks(15, 5, 0), environment.target_tasks(15, 5, 1)
    for inference in ("map", "svgd"):
        seconds: dict[float | str, list[float]] = {0.5: [], "auto": []}
        for _ in range(n_repeats + 1):
            for alpha, of_alpha in seconds.items():  # in turn, so that a busy machine slows both
                meta = WFEMRegressor(
                    alpha=alpha,
                    inference=inference,
                    likelihood=Gaussian(0.1),
                    temperature="bayes",
                    training=Training(n_steps=2000, progress=False),
                    random_state=0,
                )
                started = time.perf_counter()
                meta.fit(source, target)
                of_alpha.append(time.perf_counter() - started)
        for alpha, of_alpha in seconds.items():
            low, median, high = np.quantile(of_alpha[1:], (0.25, 0.5, 0.75))
            later = f"{median:.2f} s ({low:.2f} to {high:.2f})"
            print(f"{inference:4s} alpha={alpha!s:4}  compilation {of_alpha[0] - median:.1f} s, then {later}")
        ratios = np.array(seconds["auto"][1:]) / np.array(seconds[0.5][1:])
        spread = f"({ratios.min():.1f} to {ratios.max():.1f})"
        print(f"{inference:4s} alpha chosen takes {np.median(ratios):.1f} times as long, paired {spread}")
    print(
        f"jax {jax.__version__}, {jax.devices()[0].platform}, {platform.machine()}, python {platform.python_version()}"
    )


if __name__ == "__main__":
    main()
