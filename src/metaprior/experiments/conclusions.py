"""What follows from results: claims, figures and the report, of all studies that a folder holds."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from metaprior.experiments.claims import Claim, claims_json, judge
from metaprior.experiments.report import make_report, save_pictures
from metaprior.experiments.schema import FIGURES
from metaprior.experiments.store import ResultsError, read_json, write_whole


def conclude(folder: Path, out: Path | None = None) -> tuple[list[Claim], list[Path]]:
    """Judge the claims; write claims.json, a PNG of every figure and report.html into `out` (default: the folder)."""
    out = folder if out is None else out
    tables = read_tables(folder)
    claims = judge(tables)
    files = [out / "claims.json", *save_pictures(tables, out), out / "report.html"]
    write_whole(files[0], (json.dumps(claims_json(claims), indent=1) + "\n").encode())
    make_report(tables, claims, {name: provenance(folder / name) for name in tables}, files[-1])
    return claims, files


def read_tables(folder: Path, names: Sequence[str] = FIGURES) -> dict[str, pd.DataFrame]:
    """The tables of the studies that are there."""
    tables = {}
    for name in names:
        path = folder / name / "results.parquet"
        if path.exists():
            try:
                tables[name] = pd.read_parquet(path)
            except (OSError, ValueError) as error:  # pyarrow's errors are one or the other
                raise ResultsError(
                    f"{path} is damaged ({error}). Remove that file, then run `metaprior reproduce {name}` again with "
                    "--resume: it is made from the files of the points, which are kept."
                ) from None
    return tables


def provenance(folder: Path) -> dict[str, Any]:
    """What the report says of a study: how long, on what, how to make it again."""
    config = read_json(folder / "config.json")
    runs = read_json(folder / "provenance.json")["runs"]
    return {
        "command": runs[-1]["command"],
        "seconds": sum(run["seconds"] for run in runs),
        "device": "; ".join(dict.fromkeys(run["device"] for run in runs)),
        "versions": runs[-1]["versions"],
        "commit": "; ".join(dict.fromkeys(run["commit"] for run in runs)),
        "settings": config,
        "draws": config["n_draws"],
    }
