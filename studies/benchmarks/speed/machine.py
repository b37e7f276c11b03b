"""The machine that the benchmarks ran on."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("metaprior", "jax", "jaxlib", "equinox", "optax", "numpy", "scikit-learn", "torch", "gpytorch")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "XLA_FLAGS", "JAX_PLATFORMS")


def describe() -> dict[str, Any]:
    """Return processor, cores, devices, versions, and environment variables that change threads or devices."""
    import jax

    return {
        "processor": _processor(),
        "cores": n_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "devices": sorted({device.device_kind for device in jax.devices()}),
        "n_devices": jax.device_count(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "environment": {name: os.environ[name] for name in THREADS if name in os.environ},
    }


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_torch() -> bool:
    """Return whether the contestants that need torch can run."""
    return _version("torch") is not None and _version("gpytorch") is not None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
