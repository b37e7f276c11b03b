"""Run studies: compute the missing points one after another and store each."""

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

Progress = Callable[[str, int], None]  # called often with a description and the number of points just finished
PACKAGES = ("metaprior", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")


def run(
    studies: Sequence[Study], folder: Path, resume: bool, command: str, progress: Progress = lambda what, done: None
) -> dict[str, "pd.DataFrame"]:
    """Complete the studies in `folder` and return their tables."""
    stores = [Store(folder / study.name, study) for study in studies]
    for store in stores:
        store.check(resume)
    tables = {}
    for store in stores:
        compute(store, command, progress)
        tables[store.study.name] = store.write_table()
    return tables


def compute(store: Store, command: str, progress: Progress = lambda what, done: None) -> None:
    """Compute and store the missing points. Finished points survive an interruption."""
    store.write_config()
    environment = describe_environment(command)
    for point in store.points:
        name = f"{store.study.name}, {point.name}"
        if not store.has(point):
            progress(name, 0)
            started = time.perf_counter()
            store.add(point, store.study.run(point, lambda what, name=name: progress(f"{name}: {what}", 0)))
            store.add_provenance({"points": 1, "seconds": round(time.perf_counter() - started, 1), **environment})
        progress(name, 1)


def describe_environment(command: str) -> dict[str, Any]:
    """Return what results may depend on besides the configuration: command, device, versions, commit and date."""
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
    """Return the commit of the code, with a plus if files differ from it; 'unknown' outside a checkout."""
    here = Path(__file__).parent
    commands = (
        ["ls-files", "--error-unmatch", __file__],  # fails outside a checkout of this code
        ["rev-parse", "--short=12", "HEAD"],
        ["status", "--porcelain", "--untracked-files=no", ".", "../../src"],
    )
    try:
        _, head, changed = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True).stdout
            for words in commands
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
