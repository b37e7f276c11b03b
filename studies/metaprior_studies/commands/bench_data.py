"""`metaprior bench-data`."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaprior.cli.console import err, exit_error, out, print_json, print_table
from metaprior.cli.options import write
from metaprior_studies.commands.results import keep_results, make_folder, progress

if TYPE_CHECKING:
    import pandas as pd


class Environment(StrEnum):
    """Real environments."""

    colorado = "colorado"
    physionet_gcs = "physionet-gcs"
    physionet_hct = "physionet-hct"
    ujiindoorloc = "ujiindoorloc"
    intel_berkeley = "intel-berkeley"
    all = "all"


def bench_data(
    name: Annotated[Environment, typer.Argument(help="A real environment, or all whose data are present.")] = (
        Environment.all
    ),
    draws: Annotated[int, typer.Option(min=1, help="Independent draws of tasks; intervals need at least ten.")] = 10,
    folder: Annotated[Path, typer.Option("--out", help="Folder for results and pictures.")] = Path("bench-data"),
    resume: Annotated[bool, typer.Option("--resume", help="Complete the results of an interrupted run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of tables.")] = False,
):
    """Compare all schemes and scikit-learn's GP on real data. A draw of an environment takes a minute or two."""
    from metaprior_studies.runner import run

    started = time.perf_counter()
    chosen = _with_data(name, draws)
    make_folder(folder)
    command = f"metaprior bench-data {name.value} --draws {draws}"
    with keep_results():
        with progress(total=draws * len(chosen)) as advance:
            tables = run(chosen, folder, resume, command, advance)
        _conclude(tables, folder, as_json)
    err.print(f"{time.perf_counter() - started:.0f} s.")


def _with_data(name: Environment, draws: int) -> list[Any]:
    """Return the studies whose data are present; exit if the named one has none, or if none has."""
    from dataclasses import replace

    from metaprior_studies.environments.images import DataMissing
    from metaprior_studies.real.real_study import ENVIRONMENTS, STUDIES

    chosen = []
    for study in STUDIES:
        if name.value in (study, "all"):
            try:
                ENVIRONMENTS[study]()
            except DataMissing as missing:
                if name is not Environment.all:
                    raise exit_error(str(missing)) from None
                err.print(
                    f"Skipped {study}: its data are missing (`metaprior bench-data {study}` says where to get them)."
                )
            except ValueError as damaged:
                raise exit_error(str(damaged)) from None
            else:
                chosen.append(replace(STUDIES[study], n_draws=draws))
    if not chosen:
        raise exit_error("No data were found: set METAPRIOR_DATA to the folder that has them.")
    return chosen


def _conclude(tables: "dict[str, pd.DataFrame]", folder: Path, as_json: bool) -> None:
    """Draw a figure per environment, and print the results as tables or JSON."""
    from metaprior_studies.real.real_picture import draw_picture
    from metaprior_studies.real.real_results import (
        COLUMNS,
        find,
        scheme_scores,
        table_rows,
        to_json,
        words,
    )

    files = []
    for name, table in tables.items():
        files.append(folder / f"{name}.png")
        write(files[-1], draw_picture(name, table))
        if not as_json:
            out.print(f"\n{name}: mean ± standard error over draws", highlight=False)
            print_table(COLUMNS, table_rows(scheme_scores(table)))
            out.print(words(find(table)), highlight=False, markup=False)
    if as_json:
        print_json({name: to_json(table) for name, table in tables.items()})
    err.print(f"Wrote {', '.join(map(str, files))}.", highlight=False, markup=False)
