"""The one runner of all studies: points that are missing are computed and kept, then tables, claims and report made."""

import importlib.metadata
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metaprior.experiments.store import Store, write_whole
from metaprior.experiments.study import Study

if TYPE_CHECKING:
    import pandas as pd

PACKAGES = ("metaprior", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")


def run(
    studies: Sequence[Study],
    folder: Path,
    resume: bool,
    command: str,
    on_point: Callable[[str, str], None] = lambda study, point: None,
) -> dict[str, "pd.DataFrame"]:
    """Complete the studies in `folder` and give their tables. `on_point` is told what is being worked at, often."""
    stores = [Store(folder / study.name, study) for study in studies]
    for store in stores:
        store.open(resume)
    tables = {}
    for store in stores:
        compute(store, command, on_point)
        tables[store.study.name] = store.write_table()
    return tables


def compute(store: Store, command: str, on_point: Callable[[str, str], None] = lambda study, point: None) -> None:
    """Compute the points that are missing. Whatever stops it, those done are kept and noted with the time they took."""
    missing = [point for point in store.points if not store.has(point)]
    started, done = time.perf_counter(), 0
    try:
        for point in missing:
            on_point(store.study.name, point.name)
            rows = store.study.run(point, lambda what, point=point: on_point(store.study.name, f"{point.name}, {what}"))
            store.add(point, rows)
            done += 1
    finally:
        if done:
            store.note({"points": done, "seconds": round(time.perf_counter() - started, 1), **surroundings(command)})


def surroundings(command: str) -> dict[str, Any]:
    """What results may depend on besides their configuration."""
    import jax

    device = jax.devices()[0]
    return {
        "command": command,
        "device": f"{device.device_kind} ({device.platform}), {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES if _installed(name)},
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def commit() -> str:
    """The commit of the code, with a plus where it has been changed since; 'unknown' outside a checkout."""
    here = Path(__file__).parent
    try:
        said = [
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True).stdout
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "."])
        ]
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said[0].strip() + ("+" if said[1].strip() else "")


def summary_of(store: Store) -> dict[str, Any]:
    """What the report says of a study: how long, on what, how to make it again."""
    runs = store.provenance()
    last = runs[-1] if runs else {}
    return {
        "command": last.get("command", "unknown"),
        "seconds": sum(run["seconds"] for run in runs),
        "device": "; ".join(dict.fromkeys(run["device"] for run in runs)),
        "versions": last.get("versions", {}),
        "commit": "; ".join(dict.fromkeys(run["commit"] for run in runs)),
        "settings": store.config,
        "draws": store.config.get("n_draws", 0),
    }


def read_tables(folder: Path, names: Sequence[str]) -> dict[str, "pd.DataFrame"]:
    """The tables in a folder of results."""
    import pandas as pd

    paths = {name: folder / name / "results.parquet" for name in names}
    return {name: pd.read_parquet(path) for name, path in paths.items() if path.exists()}


def write_claims(claims: dict[str, Any], folder: Path) -> Path:
    """claims.json."""
    import json

    path = folder / "claims.json"
    write_whole(path, (json.dumps(claims, indent=1) + "\n").encode())
    return path


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
