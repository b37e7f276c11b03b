"""Claims, figures and the report of all studies in a folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from metaprior_studies.reproduction.claims import Claim, claims_json, judge
from metaprior_studies.reproduction.html_report import make_report, render
from metaprior_studies.results_store import ResultsError, read_json, read_runs, write_file
from metaprior_studies.schema import COLUMNS, FIGURES


def conclude(folder: Path) -> tuple[list[Claim], list[Path]]:
    """Judge the claims, and write claims.json, a PNG file per figure and report.html beside the results."""
    tables = read_tables(folder)
    claims = judge(tables)
    pictures = render(tables)
    drawn = {folder / f"{name}.png": picture for name, picture in pictures.items()}
    written = {folder / "claims.json": (json.dumps(claims_json(claims), indent=1) + "\n").encode(), **drawn}
    for path, content in written.items():
        write_file(path, content)
    report = folder / "report.html"
    make_report(tables, claims, {name: provenance(folder / name) for name in tables}, pictures, report)
    return claims, [*written, report]


def read_tables(folder: Path, names: Sequence[str] = FIGURES) -> dict[str, pd.DataFrame]:
    """Return the tables of the studies that have results in the folder."""
    tables = {}
    for name in names:
        path = folder / name / "results.parquet"
        if path.exists():
            try:
                tables[name] = pd.read_parquet(path)
                if missing := set(COLUMNS) - set(tables[name]):
                    raise ValueError(f"missing columns: {', '.join(sorted(missing))}")
            except (OSError, ValueError) as error:  # pyarrow raises one or the other
                raise ResultsError(
                    f"{path} is damaged ({error}). Remove that file, then run `metaprior reproduce {name}` again with "
                    "--resume, which makes it again from the files of the points."
                ) from None
    return tables


def provenance(folder: Path) -> dict[str, Any]:
    """Return how a study was made, for the report: command, time, device, versions, commit and settings."""
    runs = read_runs(folder)
    config = read_json(folder / "config.json")
    versions = {name: None for run in runs for name in run["versions"]}
    return {
        "command": "; ".join(dict.fromkeys(run["command"] for run in runs)) or "unknown",
        "seconds": sum(run["seconds"] for run in runs),
        "device": "; ".join(dict.fromkeys(run["device"] for run in runs)) or "unknown",
        "versions": {
            name: " and ".join(dict.fromkeys(run["versions"][name] for run in runs if name in run["versions"]))
            for name in versions
        },
        "commit": "; ".join(dict.fromkeys(run["commit"] for run in runs)) or "unknown",
        "settings": config,
        "draws": config["n_draws"],
    }
