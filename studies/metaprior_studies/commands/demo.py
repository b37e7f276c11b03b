"""`metaprior demo`."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from metaprior.cli.console import err, out, print_table
from metaprior_studies.commands.results import make_folder, progress


class Problem(StrEnum):
    """Problems of the demo."""

    sinusoid = "sinusoid"
    fewshot = "fewshot"


def demo(
    problem: Annotated[
        Problem, typer.Option(help="Regression (sinusoid) or classification (fewshot).")
    ] = Problem.sinusoid,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results and the figure.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random tasks.")] = 0,
    draws: Annotated[int, typer.Option(min=1, help="Independent draws of tasks; results are means over them.")] = 8,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Training steps of every fit (default: 2000 sinusoid, 1000 fewshot).")
    ] = None,
):
    """Meta-train all schemes on one problem and compare them. Takes about four minutes."""
    started = time.perf_counter()
    make_folder(folder)
    files = (_sinusoid if problem is Problem.sinusoid else _fewshot)(folder, seed, draws, steps)
    out.print(f"Wrote {' and '.join(str(file) for file in files)} in {time.perf_counter() - started:.0f} s.")


def _sinusoid(folder: Path, seed: int, draws: int, steps: int | None) -> tuple[Path, Path]:
    """Run the paper's sinusoid problem."""
    from metaprior_studies.demo.rows import write_results
    from metaprior_studies.demo.sinusoid_demo import DemoConfig, draw_figure, run, schemes, summary

    config = DemoConfig(seed=seed, n_draws=draws, n_steps=2000 if steps is None else steps)
    err.print(
        f"Sinusoid: {config.n_tasks} tasks of {config.n_samples} samples, {config.beta:.0%} of them from a source "
        f"whose phase is off by {config.deviation:g}. {draws} draw(s), {config.n_test_tasks} test tasks each."
    )
    files = folder / "results.csv", folder / "figure2.png"
    with progress(total=draws * (len(schemes(config)) + 2) + 1) as advance:
        rows = run(config, advance)
        write_results(rows, files[0])
        advance("figure")
        draw_figure(config, files[1])
    print_table(("scheme", "RMSE", "NLL", "calibration error", "seconds"), summary(rows))
    out.print(
        f"RMSE: mean ± standard error over {draws} draws. Seconds: median of the fits, the first of which compiles. "
        f"WFEM with alpha = beta = {config.beta:g} weights all tasks equally, as PACOH on pooled tasks does."
    )
    return files


def _fewshot(folder: Path, seed: int, draws: int, steps: int | None) -> tuple[Path, Path]:
    """Run two-way few-shot classification, with source and target classes from two data sets."""
    from metaprior.estimators.baselines import BASELINES
    from metaprior_studies.demo.fewshot_demo import FewShotConfig, draw_figure, find_data, run, schemes, summary
    from metaprior_studies.demo.rows import write_results

    config = FewShotConfig(seed=seed, n_draws=draws, n_steps=1000 if steps is None else steps)
    episodes, data = find_data()
    setting = (
        f"{config.n_tasks} tasks of 2 classes and {config.shots} samples each, {config.beta:.0%} of them from the "
        f"source. {draws} draw(s), {config.n_test_tasks} test tasks each."
    )
    err.print(f"{data}: {setting}")
    files = folder / "fewshot.csv", folder / "fewshot.png"
    with progress(total=draws * (len(schemes(config, 1)) + len(BASELINES)) + 1) as advance:
        rows = run(config, episodes, advance)
        write_results(rows, files[0])
        advance("figure")
        draw_figure(rows, data, files[1])
    print_table(("scheme", "accuracy", "minus RBF GP", "log loss", "ECE"), summary(rows))
    out.print(
        f"Mean ± standard error over {draws} draws; differences are paired. "
        f"WFEM at alpha = beta = {config.beta:g} is the pooled row. ECE: expected calibration error."
    )
    return files
