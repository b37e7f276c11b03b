"""How long `fit` takes: N=30 tasks of M=5 samples, MAP, 2000 full-batch steps, default networks.

python benchmarks/fit_time.py
"""

import platform
import time

import jax
import numpy as np

from metaprior import MetaGPRegressor
from metaprior.environments.sinusoid import Sinusoid


def main(n_repeats: int = 9):
    environment = Sinusoid(0.5)
    source, target = environment.source_tasks(15, 5, 0), environment.target_tasks(15, 5, 1)
    for inference in ("map", "svgd"):
        seconds = []
        for repeat in range(n_repeats + 1):
            meta = MetaGPRegressor(alpha=0.5, inference=inference, n_steps=2000, random_state=repeat, progress=False)
            started = time.perf_counter()
            meta.fit(source, target)
            seconds.append(time.perf_counter() - started)
        first, later = seconds[0], np.array(seconds[1:])
        low, median, high = np.quantile(later, (0.25, 0.5, 0.75))
        print(
            f"{inference:4s}  compilation {first - median:.1f} s, then {median:.2f} s a fit ({low:.2f} to {high:.2f})"
        )
    print(
        f"jax {jax.__version__}, {jax.devices()[0].platform}, {platform.machine()}, python {platform.python_version()}"
    )


if __name__ == "__main__":
    main()
