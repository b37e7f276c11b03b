"""Work in chunks that fit into memory: a chunk that does not fit is halved and retried."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from metaprior.checks import Argument, Message

Result = TypeVar("Result")
BLOCK = 256  # rows of a covariance

# Files with the limit, the use and its parts, of control groups of Linux in both versions.
CONTAINERS = [
    tuple(f"/sys/fs/cgroup/{name}" for name in ("memory.max", "memory.current", "memory.stat")),
    tuple(f"/sys/fs/cgroup/memory/memory.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "stat")),
]
# If a single training run does not fit.
RUN_ADVICE = Message(
    *("Set or decrease ", Argument("batch_size"), ", decrease ", Argument("n_particles")),
    *(", or use ", Argument("fewer tasks"), "."),
)


class OutOfMemoryWarning(UserWarning):
    """Warn that work was split into smaller chunks because memory was short. Results are the same."""


def in_chunks(
    run: Callable[[Any, int], Result], items: Sequence[Any] | Any, chunk_size: int, what: str, advice: str
) -> Iterator[Result]:
    """Yield `run(chunk, chunk_size)` for chunks of the items.

    If a chunk runs out of memory, it and all later ones are halved, with one warning. If a single item does not fit,
    raise MemoryError with `advice`. `what` names the items.
    """
    first, warned = 0, False
    while first < len(items):
        chunk = items[first : first + chunk_size]
        try:
            result = run(chunk, chunk_size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(chunk) == 1:
                raise MemoryError(Message(f"Out of memory with one of the {what} at a time. ", advice)) from error
        else:
            yield result
            first += len(chunk)
            continue
        # Outside the except clause: the exception keeps alive all that the failed attempt had allocated.
        chunk_size = (min(chunk_size, len(chunk)) + 1) // 2
        if not warned:
            warned = True
            message = f"Out of memory with {len(chunk)} of the {what} at once: tried again with {chunk_size}."
            warnings.warn(message, OutOfMemoryWarning, stacklevel=2)


def check_available(what: str, needed: float, advice: str) -> None:
    """Raise MemoryError if something needs more bytes than are available: the system would end the whole process."""
    available = available_bytes()
    if available is not None and needed > available:
        found = f"{what} needs about {needed / 1e9:.2g} GB of memory, and {available / 1e9:.2g} GB are available. "
        raise MemoryError(Message(found, advice))


def available_bytes() -> float | None:
    """Return how much memory can still be used, of the machine and of a container; None if the system does not tell."""
    found = []
    for limit, used, cache in CONTAINERS:
        try:
            most, now = (float(Path(each).read_text()) for each in (limit, used))
            stat = dict(line.split() for line in Path(cache).read_text().splitlines())
            found.append(most - now + float(stat.get("inactive_file", 0)))
        except (OSError, ValueError):  # no such container, or one without a limit: "max"
            continue
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(1024.0 * float(lines["MemAvailable"].split()[0]))
    except (OSError, ValueError, KeyError):  # not on Linux
        pass
    return min(found, default=None)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is short, on the host or on a device."""
    if isinstance(error, MemoryError):
        return True
    message = str(error)
    is_exhausted = "RESOURCE_EXHAUSTED" in message or "out of memory" in message.lower()
    jax = sys.modules.get("jax")  # whose errors need no import if it is not in use
    return is_exhausted and jax is not None and isinstance(error, jax.errors.JaxRuntimeError)


def blocks(n: int, size: int = BLOCK) -> Iterator[slice]:
    """Yield slices of up to `size` of n rows: work on a large matrix that way needs little memory beside it."""
    return (slice(first, min(first + size, n)) for first in range(0, n, size))
