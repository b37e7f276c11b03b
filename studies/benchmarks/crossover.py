"""Up to which size it is faster to factorize all covariances of a batch at once than with LAPACK or cuSOLVER.

Times the evidence and its gradient both ways, in turn; results: studies/results/speed/crossover.md.

    python studies/benchmarks/crossover.py [--tasks 30,1000] [--sizes 2,5,8,12,16,20,24,32,48]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.wfem import linalg


def timed(function, arguments, rounds=3):
    """Return a function that times one call, after a first call to warm up."""
    jax.block_until_ready(function(*arguments))

    def once():
        start = time.perf_counter()
        for _ in range(rounds):
            jax.block_until_ready(function(*arguments))
        return (time.perf_counter() - start) / rounds

    return once


def evidence(limit, covariances, residuals):
    """Return the compiled value and gradient of the sum of evidences, for a given crossover size."""
    linalg.MAX_UNROLLED, before = limit, linalg.MAX_UNROLLED
    try:
        total = lambda covariances, residuals: jnp.sum(jax.vmap(linalg.log_normal)(covariances, residuals))  # noqa: E731
        return jax.jit(jax.value_and_grad(total, (0, 1))).lower(covariances, residuals).compile()
    finally:
        linalg.MAX_UNROLLED = before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="30,1000")
    parser.add_argument("--sizes", default="2,5,8,12,16,20,24,32,48")
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, float32; microseconds per task, medians of 9")
    print("| tasks | samples | all at once | LAPACK or cuSOLVER | ratio | seconds to compile |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    rng = np.random.default_rng(0)
    for n_tasks in map(int, options.tasks.split(",")):
        for size in map(int, options.sizes.split(",")):
            root = rng.normal(size=(n_tasks, size, size)) / np.sqrt(size)
            covariances = jnp.asarray(root @ np.swapaxes(root, 1, 2) + 0.1 * np.eye(size), jnp.float32)
            arguments = covariances, jnp.asarray(rng.normal(size=(n_tasks, size)), jnp.float32)
            started = time.perf_counter()
            at_once = evidence(size, *arguments)
            compiling = time.perf_counter() - started
            contestants = [timed(each, arguments) for each in (at_once, evidence(size - 1, *arguments))]
            times = np.median([[once() for once in contestants] for _ in range(9)], axis=0) / n_tasks * 1e6
            ratio = times[1] / times[0]
            print(
                f"| {n_tasks} | {size} | {times[0]:.3g} | {times[1]:.3g} | {ratio:.2f} | {compiling:.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
