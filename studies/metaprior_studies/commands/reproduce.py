"""`metaprior reproduce`."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from metaprior.cli.console import err, out, print_table
from metaprior_studies.commands.results import keep_results, make_folder, progress


class Figure(StrEnum):
    """Figures and studies that can be reproduced."""

    fig1 = "fig1"
    fig2 = "fig2"
    fig3 = "fig3"
    fig4 = "fig4"
    fig5 = "fig5"
    regime = "regime"
    all = "all"
    settings = "settings"


class Profile(StrEnum):
    """Numbers of draws and points."""

    quick = "quick"
    full = "full"


def reproduce(
    figure: Annotated[
        Figure,
        typer.Argument(help="A figure of the paper, the regime map, all of these, or the search for open settings."),
    ],
    profile: Annotated[
        Profile,
        typer.Option(
            help="quick: minutes on a laptop. full: enough draws for conclusive intervals, on an accelerator."
        ),
    ] = Profile.quick,
    draws: Annotated[
        int | None, typer.Option(min=1, help="Independent draws of every point; default: that of the profile.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for results, claims, figures and report.")] = Path(
        "reproduction"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Complete the results of an interrupted run.")] = False,
):
    """Reproduce the paper's experiments and judge its claims."""
    from metaprior_studies.reproduction.profiles import studies
    from metaprior_studies.runner import run

    started = time.perf_counter()
    make_folder(folder)
    command = f"metaprior reproduce {figure.value} --profile {profile.value}" + (f" --draws {draws}" if draws else "")
    missing = lambda data: err.print(f"Skipped {data}: the data are missing (set METAPRIOR_DATA to their folder).")  # noqa: E731
    with keep_results():
        chosen = studies(figure.value, profile.value, draws, missing)
        with progress(total=sum(len(list(study.points())) for study in chosen)) as advance:
            run(chosen, folder, resume, command, advance)
        if figure is Figure.settings:
            _print_settings(folder)
        else:
            _conclude(folder)
    out.print(f"{time.perf_counter() - started:.0f} s.")


def _conclude(folder: Path) -> None:
    """Judge the claims, and write figures and report of all results in the folder."""
    from metaprior_studies.reproduction.claims import SCOPE
    from metaprior_studies.reproduction.conclusions import conclude
    from metaprior_studies.reproduction.html_report import claims_rows

    claims, files = conclude(folder)
    print_table(("claim", "statement", "verdict", "difference [95% interval]"), claims_rows(claims))
    out.print(SCOPE, soft_wrap=True)
    out.print(f"Wrote {', '.join(str(file) for file in files)}.", highlight=False, markup=False)


def _print_settings(folder: Path) -> None:
    """Print the settings that the search chooses."""
    from metaprior_studies.reproduction.conclusions import read_tables
    from metaprior_studies.reproduction.settings_search import CANDIDATE, best

    table = read_tables(folder, ["settings"])["settings"]
    pairs = table[["data", "inference"]].drop_duplicates().itertuples(index=False)
    rows = [(*pair, *map(str, vars(best(table, *pair)).values())) for pair in pairs]
    print_table(("data", "inference", *CANDIDATE), rows)
