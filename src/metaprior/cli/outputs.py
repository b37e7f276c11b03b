"""Files that commands write: nothing that was given is overwritten, and nothing is found out after the work."""

import os
from pathlib import Path
from typing import Any

PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg")


def check_outputs(inputs: list[Path], out: Path | None, plot: Path | None = None) -> None:
    """Refuse outputs that are inputs or each other, that are folders, or that cannot be written."""
    given = {"--out": out, "--plot": plot}
    outputs = {option: path for option, path in given.items() if path is not None}
    for option, path in outputs.items():
        if path.is_dir():
            raise ValueError(f"{option} {path} is a folder. Name a file.")
        if any(_same(path, read) for read in inputs):
            raise ValueError(f"{option} {path} is a file that this command reads. Name another.")
        above = next(folder for folder in path.absolute().parents if folder.exists())
        if not (above.is_dir() and os.access(above, os.W_OK)):
            raise ValueError(f"{option} {path}: cannot write to {above}. Name a file elsewhere.")
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise ValueError(f"--plot must end in one of {', '.join(PICTURES)}; got {plot}.")
    if out is not None and plot is not None and _same(out, plot):
        raise ValueError(f"--out and --plot must be two files; got {out} for both.")


def write(path: Path, content: bytes) -> None:
    """The whole file or none."""
    from metaprior.files import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def write_picture(path: Path, figure: Any) -> None:
    """A matplotlib figure, in the format that the name asks for."""
    from metaprior.plots.style import as_bytes

    write(path, as_bytes(figure, path.suffix[1:].lower()))


def write_frame(path: Path, frame: Any) -> None:
    """A data frame as CSV, or as Parquet where the name asks for that."""
    content = frame.to_parquet(index=False) if path.suffix == ".parquet" else frame.to_csv(index=False).encode()
    write(path, content)


def _same(first: Path, second: Path) -> bool:
    return first.absolute() == second.absolute() or (first.exists() and second.exists() and first.samefile(second))
