"""`metaprior info`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from metaprior.cli.show import out, print_table, refusal


def info(
    path: Annotated[Path, typer.Argument(help="A prior saved by `save`.")],
    plot: Annotated[Path | None, typer.Option(help="Draw what was compared to choose alpha into this file.")] = None,
):
    """Say what a saved prior was fitted with, and whether its source helped."""
    from metaprior.persistence import InvalidFile, read_prior
    from metaprior.transfer import TransferReport

    try:
        header, _ = read_prior(path)
        report = TransferReport.from_json(header["report"])
    except (InvalidFile, OSError, KeyError) as error:
        raise refusal(str(error)) from None
    fitted = {name: value for name, value in header["fitted"].items() if isinstance(value, int | float | str)}
    rows = [
        ("kind", header["kind"]),
        ("inputs", str(header["input_dim"])),
        ("priors averaged", str(header["n_members"])),
    ]
    rows += [
        (name.rstrip("_"), f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in fitted.items()
    ]
    print_table(("fitted", "value"), rows)
    print_table(("argument", "value"), [(name, json.dumps(value)) for name, value in header["parameters"].items()])
    out.print(str(report), highlight=False)
    if plot is not None:
        report.plot().savefig(plot, dpi=120)
        out.print(f"Wrote {plot}.")
