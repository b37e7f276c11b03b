"""`metaprior demo`."""

import textwrap
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from metaprior.cli.console import err, out, print_table
from metaprior_studies.commands.results import make_folder, progress


class Problem(StrEnum):
    """Problems of the demo."""

    patients = "patients"
    sinusoid = "sinusoid"
    fewshot = "fewshot"


def demo(
    problem: Annotated[
        Problem | None,
        typer.Option(
            help="One problem only (default: patients, then sinusoid): heart rates in two hospitals, the paper's "
            "regression problem, or few-shot classification.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for tables and pictures.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random tasks.")] = 0,
    draws: Annotated[
        int | None,
        typer.Option(min=1, help="Independent draws of tasks; results are means (default: 1 sinusoid, 8 fewshot)."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Training steps of metaprior.wfem (default: 2000, 1000 fewshot).")
    ] = None,
):
    """Show what metaprior does: patients in two hospitals, then the paper's schemes. Takes under a minute."""
    started = time.perf_counter()
    make_folder(folder)
    files: list[Path] = []
    if problem in (None, Problem.patients):
        files += _patients(folder, seed)
    if problem in (None, Problem.sinusoid):
        files += _sinusoid(folder, seed, draws or 1, 2000 if steps is None else steps)
    if problem is Problem.fewshot:
        files += _fewshot(folder, seed, draws or 8, 1000 if steps is None else steps)
    names = ", ".join(file.name for file in files)
    out.print(f"Wrote {names} to {folder} in {time.perf_counter() - started:.0f} s.", soft_wrap=True)


def _patients(folder: Path, seed: int) -> list[Path]:
    """Fit the example tables, compare with other models, and predict new patients."""
    from metaprior_studies.demo.patients_demo import (
        COVERAGE,
        N_CONTEXT,
        SOURCE,
        STEPS,
        TARGET,
        Patients,
        predict,
        run,
        summary,
    )
    from metaprior_studies.demo.rows import write_results

    patients = Patients.read()
    n_source, n_target, n_test = len(patients.source), len(patients.target), len(patients.test.names)
    out.print(
        f"Heart rates after surgery (made up): {n_source} patients of hospital {SOURCE}, the source,\n"
        f"and {n_target} of hospital {TARGET}, the target. metaprior learns a prior from them, then\n"
        f"predicts {n_test} other patients of {TARGET} from {N_CONTEXT} readings each.",
        soft_wrap=True,
    )
    files = [folder / name for name in ("patients.csv", "prior.safetensors", "predictions.csv", "predictions.png")]
    with progress(total=len(STEPS) + 1) as advance:
        meta, rows = run(patients, seed, advance)
        write_results(rows, files[0])
        meta.save(files[1])
        advance(STEPS[-1])
        predict(meta, patients, files[2], files[3])
    report = meta.transfer_report()
    out.print(textwrap.fill(report.verdict, 80), report.family_words, sep="\n", soft_wrap=True)
    print_table((f"{n_test} new patients", "RMSE", "NLL", f"{COVERAGE:.0%} coverage", "seconds"), summary(rows))
    out.print("Means over patients; RMSE in beats per minute, seconds of fit and predictions.\n", soft_wrap=True)
    return files


def _sinusoid(folder: Path, seed: int, draws: int, steps: int) -> list[Path]:
    """Run the paper's sinusoid problem."""
    from metaprior_studies.demo.rows import write_results
    from metaprior_studies.demo.sinusoid_demo import DemoConfig, draw_figure, run, schemes, summary

    config = DemoConfig(seed=seed, n_draws=draws, n_steps=steps)
    out.print(
        f"The paper's sinusoids: {config.n_tasks} tasks of {config.n_samples} readings, {config.beta:.0%} of them from "
        "a source of\nanother phase. Its schemes are those of metaprior.wfem; the default needs no JAX.",
        soft_wrap=True,
    )
    files = [folder / "sinusoid.csv", folder / "sinusoid.png"]
    with progress(total=draws * (len(schemes(config)) + 2) + 1) as advance:
        rows = run(config, advance)
        write_results(rows, files[0])
        advance("figure")
        draw_figure(config, files[1])
    print_table(("scheme", "RMSE", "NLL", "calibration error", "seconds"), summary(rows))
    if draws == 1:
        out.print(
            "One draw; the first two fits also compile. For standard errors, and alpha chosen\n"
            "with the paper's prior: metaprior demo --problem sinusoid --draws 8\n",
            soft_wrap=True,
        )
    else:
        out.print(f"RMSE: mean ± standard error over {draws} draws. Seconds: median of the fits.\n", soft_wrap=True)
    return files


def _fewshot(folder: Path, seed: int, draws: int, steps: int) -> list[Path]:
    """Run two-way few-shot classification, with source and target classes from two data sets."""
    from metaprior.estimators.comparison import BASELINES
    from metaprior_studies.demo.fewshot_demo import FewShotConfig, draw_figure, find_data, run, schemes, summary
    from metaprior_studies.demo.rows import write_results

    config = FewShotConfig(seed=seed, n_draws=draws, n_steps=steps)
    episodes, data = find_data()
    setting = (
        f"{config.n_tasks} tasks of 2 classes and {config.shots} samples each, {config.beta:.0%} of them from the "
        f"source. {draws} draw(s), {config.n_test_tasks} test tasks each."
    )
    err.print(f"{data}: {setting}")
    files = [folder / "fewshot.csv", folder / "fewshot.png"]
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
