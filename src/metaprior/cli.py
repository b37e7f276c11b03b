"""The command line: `metaprior --help`."""

import os
import time
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


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for results.csv and figure2.png.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Other seeds give other tasks.")] = 0,
    draws: Annotated[int, typer.Option(min=1, help="Independent draws of tasks behind every row.")] = 8,
    steps: Annotated[int, typer.Option(min=0, help="Training steps of every fit.")] = 2000,
):
    """Meta-train every scheme on the paper's sinusoid problem and compare them, in about a minute."""
    started = time.perf_counter()
    _make_folder(folder)
    _use_compilation_cache()
    from metaprior.demo import DemoConfig, draw_figure, run, schemes, summary, write_results

    config = DemoConfig(seed=seed, n_draws=draws, n_steps=steps)
    err.print(
        f"Sinusoid: {config.n_tasks} tasks of {config.n_samples} samples, {config.beta:.0%} of them from a source "
        f"whose phase is off by {config.deviation:g}. {draws} draws, {config.n_test_tasks} test tasks each."
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        bar = progress.add_task("starting", total=draws * (len(schemes(config)) + 2) + 1)
        advance = lambda name: progress.update(bar, description=name, advance=1)  # noqa: E731
        rows = run(config, advance)
        write_results(rows, folder / "results.csv")
        advance("figure")
        draw_figure(config, folder / "figure2.png")
    table = Table(
        "scheme", *(Column(name, justify="right") for name in ("RMSE", "NLL", "calibration error", "seconds"))
    )
    for row in summary(rows):
        table.add_row(*row)
    out.print(table)
    out.print(
        f"RMSE: mean ± standard error over {draws} draws. Seconds: of a fit (median; compilation comes once). "
        f"WFEM with alpha = beta = {config.beta:g} weighs all tasks alike: it is PACOH on source and target pooled."
    )
    out.print(f"Wrote {folder / 'results.csv'} and {folder / 'figure2.png'} in {time.perf_counter() - started:.0f} s.")


def _make_folder(folder: Path) -> None:
    """Find out before the work, not after it, that results cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".metaprior-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        err.print(f"[red]--out {folder}: cannot write there ({error.strerror or error}). Choose another folder.[/red]")
        raise typer.Exit(2) from None


def _use_compilation_cache() -> None:
    """Keep compiled programs between runs (JAX's persistent cache), unless the user has set one already."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    import jax
    from platformdirs import user_cache_path

    jax.config.update("jax_compilation_cache_dir", str(user_cache_path("metaprior") / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
