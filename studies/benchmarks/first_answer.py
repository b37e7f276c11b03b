"""What a newcomer waits for: the default's first fit, the next ones, the first prediction, and many new tasks.

    python studies/benchmarks/first_answer.py --out studies/results/tables/first_answer.json

A few minutes on 2 cores. New processes are timed from outside, `metaprior fit` and `metaprior predict` as a user calls
them. With torch and GPyTorch installed (`make bench` does that), adaptation to 10,000 tasks is compared with batched
exact GPs of given hyper-parameters, in turn.
"""

import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from metaprior import MetaGPRegressor
from metaprior.datasets import Sinusoid
from metaprior.files import package_versions, write_atomically

COMMAND = [str(Path(sys.executable).with_name("metaprior"))]
FIT = ["--task", "task", "--x", "x", "--y", "y", "--environment", "environment", "--target", "target"]


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    repeats: Annotated[int, typer.Option(help="Repetitions of each measurement.")] = 5,
    large: Annotated[bool, typer.Option(help="Also 1,000 to 100,000 tasks.")] = True,
):
    """Measure, print and write medians with the lowest and highest."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        table, prior = write_table(Path(folder) / "tasks.csv"), Path(folder) / "prior.safetensors"
        fit = [*COMMAND, "fit", str(table), *FIT, "--out", str(prior)]
        results["metaprior fit, 40 tasks of 10 rows, new process"] = repeated(lambda: run(fit), repeats)
        new = write_new_task(Path(folder))
        predict = [*COMMAND, "predict", str(prior), *map(str, new), "--out", str(Path(folder) / "predictions.csv")]
        results["metaprior predict from a saved prior, new process"] = repeated(lambda: run(predict), repeats)
    results["import of MetaGPRegressor, new process"] = repeated(
        lambda: run([sys.executable, "-c", "from metaprior import MetaGPRegressor"]), repeats
    )
    source, target = tasks_of(35, 5, 10)
    results["fit again in the process"] = repeated(lambda: fitted(source, target), repeats + 1)
    meta = fitted(source, target)
    for sizes in ((10, 10), (5, 50)):
        for name, call in many_tasks(meta, *sizes).items():
            results[name] = repeated(call, repeats)
    for n_tasks in (1_000, 10_000, 100_000) if large else ():
        some = tasks_of(n_tasks - 100, 100, 10)
        results[f"fit of {n_tasks:,} tasks of 10 rows"] = repeated(lambda some=some: fitted(*some), 2)
    if large:
        only = ([], Sinusoid(0.5).target_tasks(1_000, 10, rng=1))
        results["fit of 1,000 target tasks of 10 rows"] = repeated(lambda: fitted(*only), 2)
    for name, seconds in results.items():
        print(f"{name}: {seconds['median']:.2f} s ({seconds['lowest']:.2f} to {seconds['highest']:.2f})")
    if out is not None:
        machine = {"machine": platform.machine(), "versions": package_versions()}
        write_atomically(out, (json.dumps({**machine, "seconds": results}, indent=1) + "\n").encode())


def tasks_of(n_source: int, n_target: int, n_samples: int) -> tuple[list[Any], list[Any]]:
    problem = Sinusoid(0.5)
    return problem.source_tasks(n_source, n_samples, rng=0), problem.target_tasks(n_target, n_samples, rng=1)


def fitted(source: list[Any], target: list[Any]) -> MetaGPRegressor:
    return MetaGPRegressor(random_state=0, progress=False).fit(source, target)


def write_table(path: Path) -> Path:
    """Write 35 source and 5 target tasks of 10 rows."""
    lines = ["task,environment,x,y"]
    for environment, tasks in zip(("source", "target"), tasks_of(35, 5, 10), strict=True):
        for i, task in enumerate(tasks):
            rows = zip(task.x[:, 0].tolist(), task.y.tolist(), strict=True)
            lines += [f"{environment}-{i},{environment},{x!r},{y!r}" for x, y in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_new_task(folder: Path) -> tuple[Path, Path]:
    """Write the five readings of a new task, and fifty inputs to predict."""
    x, y, queries, _ = Sinusoid(0.5).test_tasks(1, 5, 50, rng=2)[0]
    readings = [f"new,{a!r},{b!r}" for a, b in zip(x[:, 0].tolist(), y.tolist(), strict=True)]
    context, query = folder / "readings.csv", folder / "queries.csv"
    context.write_text("\n".join(["task,x,y", *readings]) + "\n")
    query.write_text("\n".join(["task,x", *(f"new,{a!r}" for a in queries[:, 0].tolist())]) + "\n")
    return context, query


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def repeated(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return {"median": float(np.median(seconds)), "lowest": min(seconds), "highest": max(seconds), "repeats": repeats}


def many_tasks(
    meta: MetaGPRegressor, n_context: int, n_queries: int, n_tasks: int = 10_000
) -> dict[str, Callable[[], Any]]:
    """Return calls that adapt to 10,000 tasks and predict queries of each: the default, and one GP per task."""
    tests = Sinusoid(0.5).test_tasks(n_tasks, n_context, n_queries, rng=3)
    sizes = f"{n_tasks:,} tasks of {n_context} readings, {n_queries} queries"
    triples = [tuple(task[:3]) for task in tests]
    calls: dict[str, Callable[[], Any]] = {f"{sizes}, default": lambda: meta.predict_many(triples, return_std=True)}
    try:
        import gpytorch
        import torch
    except ImportError:
        return calls

    def batched() -> None:
        x, y, queries = (torch.tensor(np.stack(part), dtype=torch.float32) for part in zip(*triples, strict=True))
        for first in range(0, n_tasks, 1000):
            part = slice(first, first + 1000)
            likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=torch.Size([1000]))
            model = _BatchedGP(x[part], y[part], likelihood, gpytorch).eval()
            likelihood.eval()
            with torch.no_grad(), gpytorch.settings.fast_pred_var():
                predicted = likelihood(model(queries[part]))
                predicted.mean.numpy(), predicted.variance.sqrt().numpy()

    return {**calls, f"{sizes}, one GP each, GPyTorch batched": batched}


def _BatchedGP(x: Any, y: Any, likelihood: Any, gpytorch: Any) -> Any:
    class Batched(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(x, y, likelihood)
            shape = x.shape[:1]
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel(batch_shape=shape), batch_shape=shape
            )

        def forward(self, inputs: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))

    return Batched()


if __name__ == "__main__":
    typer.run(main)
