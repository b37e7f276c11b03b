"""The one runner of all studies: points that are missing are computed and kept, one after another."""

import importlib.metadata
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metaprior_studies.results_store import Store
from metaprior_studies.study import Study

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, int], None]  # told what is being done, often, and how many points are done with it
PACKAGES = ("metaprior", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")


def run(
    studies: Sequence[Study], folder: Path, resume: bool, command: str, progress: Progress = lambda what, done: None
) -> dict[str, "pd.DataFrame"]:
    """Complete the studies in `folder` and give their tables."""
    stores = [Store(folder / study.name, study) for study in studies]
    for store in stores:
        store.check(resume)
    tables = {}
    for store in stores:
        compute(store, command, progress)
        tables[store.study.name] = store.write_table()
    return tables


def compute(store: Store, command: str, progress: Progress = lambda what, done: None) -> None:
    """Compute the points that are missing. Whatever stops it, those done are kept, with the time they took."""
    store.claim()
    around = surroundings(command)
    for point in store.points:
        name = f"{store.study.name}, {point.name}"
        if not store.has(point):
            progress(name, 0)
            started = time.perf_counter()
            store.add(point, store.study.run(point, lambda what, name=name: progress(f"{name}: {what}", 0)))
            store.note({"points": 1, "seconds": round(time.perf_counter() - started, 1), **around})
        progress(name, 1)


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
    """The commit of the code, with a plus where it has been changed since; 'unknown' outside a checkout of it."""
    here = Path(__file__).parent
    asked = (
        ["ls-files", "--error-unmatch", __file__],  # fails in a checkout of something else
        ["rev-parse", "--short=12", "HEAD"],
        ["status", "--porcelain", "--untracked-files=no", ".."],
    )
    try:
        _, head, changed = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True).stdout
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head.strip() + ("+" if changed.strip() else "")


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
