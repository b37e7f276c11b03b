"""The command line: `metaprior --help`."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

app = typer.Typer(
    help="Learn Gaussian-process priors from many small tasks, most of them from somewhere else.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
out, err = Console(), Console(stderr=True)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False):
    """Set up what all commands share."""
    if version:
        from metaprior import __version__

        out.print(__version__)
        raise typer.Exit


class Problem(StrEnum):
    """What the demo can show."""

    sinusoid = "sinusoid"
    fewshot = "fewshot"


@app.command()
def demo(
    problem: Annotated[
        Problem, typer.Option(help="Regression (sinusoid) or classification (fewshot).")
    ] = Problem.sinusoid,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results and the figure.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Other seeds give other tasks.")] = 0,
    draws: Annotated[int, typer.Option(min=1, help="Independent draws of tasks behind every row.")] = 8,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Training steps of every fit (default: 2000 sinusoid, 1000 fewshot).")
    ] = None,
):
    """Meta-train every scheme on one problem and compare them, in about four minutes."""
    started = time.perf_counter()
    _make_folder(folder)
    files = (_sinusoid if problem is Problem.sinusoid else _fewshot)(folder, seed, draws, steps)
    out.print(f"Wrote {' and '.join(str(file) for file in files)} in {time.perf_counter() - started:.0f} s.")


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A prior saved by `save`.")],
    plot: Annotated[Path | None, typer.Option(help="Draw what was compared to choose alpha into this file.")] = None,
):
    """Say what a saved prior was fitted with, and whether its source helped."""
    from metaprior.persistence import InvalidFile, read
    from metaprior.transfer import TransferReport

    try:
        header, _ = read(path)
        report = TransferReport.from_json(header["report"])
    except (InvalidFile, OSError, KeyError) as error:
        raise _refusal(str(error)) from None
    fitted = {name: value for name, value in header["fitted"].items() if isinstance(value, int | float | str)}
    rows = [
        ("kind", header["kind"]),
        ("inputs", str(header["input_dim"])),
        ("priors averaged", str(header["n_members"])),
    ]
    rows += [
        (name.rstrip("_"), f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in fitted.items()
    ]
    _print_table(("fitted", "value"), rows)
    _print_table(("argument", "value"), [(name, json.dumps(value)) for name, value in header["parameters"].items()])
    out.print(str(report), highlight=False)
    if plot is not None:
        report.plot().savefig(plot, dpi=120)
        out.print(f"Wrote {plot}.")


class Figure(StrEnum):
    """What can be reproduced."""

    fig1 = "fig1"
    fig2 = "fig2"
    fig3 = "fig3"
    fig4 = "fig4"
    fig5 = "fig5"
    regime = "regime"
    all = "all"
    settings = "settings"


class Profile(StrEnum):
    """How much of it."""

    quick = "quick"
    full = "full"


@app.command()
def reproduce(
    figure: Annotated[
        Figure, typer.Argument(help="A figure of the paper, the regime map, all of these, or the search for settings.")
    ],
    profile: Annotated[
        Profile, typer.Option(help="quick: minutes on a laptop. full: for an accelerator, with intervals that decide.")
    ] = Profile.quick,
    draws: Annotated[int | None, typer.Option(min=1, help="Independent draws behind every point.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for results, claims, figures and report.")] = Path(
        "reproduction"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Complete what an earlier run has left.")] = False,
):
    """Run the paper's experiments again, and say of each of its claims whether it holds."""
    from metaprior.experiments.profiles import studies
    from metaprior.experiments.runner import run
    from metaprior.experiments.store import ResultsError

    started = time.perf_counter()
    _make_folder(folder)
    command = f"metaprior reproduce {figure.value} --profile {profile.value}" + (f" --draws {draws}" if draws else "")
    missing = lambda data: err.print(f"Left out: {data}. The data are not here (see METAPRIOR_DATA).")  # noqa: E731
    try:
        chosen = studies(figure.value, profile.value, draws, missing)
        with _progress(total=sum(len(list(study.points())) for study in chosen)) as progress:
            run(chosen, folder, resume, command, progress)
        if figure is Figure.settings:
            _print_settings(folder)
        else:
            _conclude(folder)
    except ResultsError as error:
        raise _refusal(str(error)) from None
    except KeyboardInterrupt:
        err.print("Stopped. What was finished is kept: run the same command with --resume.")
        raise typer.Exit(130) from None
    out.print(f"{time.perf_counter() - started:.0f} s.")


def _conclude(folder: Path) -> None:
    """Claims, figures and report of all results in the folder."""
    from metaprior.experiments.conclusions import conclude
    from metaprior.experiments.report import claims_rows

    claims, files = conclude(folder)
    _print_table(("claim", "what it says", "verdict", "difference [95% interval]"), claims_rows(claims))
    out.print(f"Wrote {', '.join(str(file) for file in files)}.", highlight=False, markup=False)


def _print_settings(folder: Path) -> None:
    """What the search would choose."""
    from metaprior.experiments.conclusions import read_tables
    from metaprior.experiments.validation import CANDIDATE, best

    table = read_tables(folder, ["settings"])["settings"]
    pairs = table[["data", "inference"]].drop_duplicates().itertuples(index=False)
    rows = [(*pair, *map(str, vars(best(table, *pair)).values())) for pair in pairs]
    _print_table(("data", "inference", *CANDIDATE), rows)


def _sinusoid(folder: Path, seed: int, draws: int, steps: int | None) -> tuple[Path, Path]:
    """The paper's sinusoid problem."""
    from metaprior.demo.results import write_results
    from metaprior.demo.sinusoid import DemoConfig, draw_figure, run, schemes, summary

    config = DemoConfig(seed=seed, n_draws=draws, n_steps=2000 if steps is None else steps)
    err.print(
        f"Sinusoid: {config.n_tasks} tasks of {config.n_samples} samples, {config.beta:.0%} of them from a source "
        f"whose phase is off by {config.deviation:g}. {draws} draw(s), {config.n_test_tasks} test tasks each."
    )
    files = folder / "results.csv", folder / "figure2.png"
    with _progress(total=draws * (len(schemes(config)) + 2) + 1) as advance:
        rows = run(config, advance)
        write_results(rows, files[0])
        advance("figure")
        draw_figure(config, files[1])
    _print_table(("scheme", "RMSE", "NLL", "calibration error", "seconds"), summary(rows))
    out.print(
        f"RMSE: mean ± standard error over {draws} draws. Seconds: of a fit (median; compilation comes once). "
        f"WFEM with alpha = beta = {config.beta:g} weighs all tasks alike: it is PACOH on source and target pooled."
    )
    return files


def _fewshot(folder: Path, seed: int, draws: int, steps: int | None) -> tuple[Path, Path]:
    """Two-way few-shot classification with a change of data set."""
    from metaprior.baselines import BASELINES
    from metaprior.demo.fewshot import FewShotConfig, draw_figure, find_data, run, schemes, summary
    from metaprior.demo.results import write_results

    config = FewShotConfig(seed=seed, n_draws=draws, n_steps=1000 if steps is None else steps)
    episodes, data = find_data()
    setting = (
        f"{config.n_tasks} tasks of 2 classes and {config.shots} samples each, {config.beta:.0%} of them from the "
        f"source. {draws} draw(s), {config.n_test_tasks} test tasks each."
    )
    err.print(f"{data}: {setting}")
    files = folder / "fewshot.csv", folder / "fewshot.png"
    with _progress(total=draws * (len(schemes(config, 1)) + len(BASELINES)) + 1) as advance:
        rows = run(config, episodes, advance)
        write_results(rows, files[0])
        advance("figure")
        draw_figure(rows, data, files[1])
    _print_table(("scheme", "accuracy", "minus RBF GP", "log loss", "ECE"), summary(rows))
    out.print(
        f"Mean ± standard error over {draws} draws; differences are paired. "
        f"alpha = beta = {config.beta:g} would be the pooled row. ECE: expected calibration error."
    )
    return files


@contextmanager
def _progress(total: int) -> Iterator[Callable[..., None]]:
    """A bar for a known number of things to do, told what is done now and how many are done with that."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        bar = progress.add_task("starting", total=total)
        yield lambda name, done=1: progress.update(bar, description=name, advance=done)


def _print_table(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    table = Table(names[0], *(Column(name, justify="right") for name in names[1:]))
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _make_folder(folder: Path) -> None:
    """Find out before the work, not after it, that results cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".metaprior-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise _refusal(f"--out {folder}: cannot write there ({reason}). Choose another folder.") from None


def _refusal(message: str) -> typer.Exit:
    """Say what is wrong, as it is: a file name may look like markup."""
    err.print(message, style="red", markup=False, highlight=False)
    return typer.Exit(2)
