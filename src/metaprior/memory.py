"""Work in chunks that fit into memory: a chunk that does not fit is halved and retried."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from metaprior.checks import Argument, Message

Result = TypeVar("Result")

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


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is short, on the host or on a device."""
    if isinstance(error, MemoryError):
        return True
    message = str(error)
    is_exhausted = "RESOURCE_EXHAUSTED" in message or "out of memory" in message.lower()
    jax = sys.modules.get("jax")  # whose errors need no import if it is not in use
    return is_exhausted and jax is not None and isinstance(error, jax.errors.JaxRuntimeError)
