"""Work done in parts that fit into memory: one that does not is halved and tried again."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax

Result = TypeVar("Result")

RUN_ADVICE = "Take a batch_size, or a smaller one, or fewer tasks or particles."  # where one training does not fit


class OutOfMemoryWarning(UserWarning):
    """Less was done at once than planned, since memory was short. Results are the same."""


def in_chunks(
    run: Callable[[Any, int], Result], items: Sequence[Any] | Any, at_once: int, what: str, advice: str
) -> Iterator[Result]:
    """`run(part, at_once)` for the items in parts of `at_once`, each for the next time it is asked.

    A part that runs out of memory is halved, as are all that follow; that is said once. Where a single item does not
    fit there is an error with `advice`. `what` names the items.
    """
    first, warned = 0, False
    while first < len(items):
        part = items[first : first + at_once]
        try:
            result = run(part, at_once)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(part) == 1:
                raise MemoryError(f"Out of memory with one of the {what} at a time. {advice}") from error
        else:
            yield result
            first += len(part)
            continue
        # Out of the except clause: the error holds on to all that the failed attempt had allocated.
        at_once = (min(at_once, len(part)) + 1) // 2
        if not warned:
            warned = True
            warnings.warn(
                f"Out of memory with {len(part)} of the {what} at once: tried again with {at_once}.",
                OutOfMemoryWarning,
                stacklevel=2,
            )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is short, on the host or on a device."""
    if isinstance(error, MemoryError):
        return True
    said = str(error)
    return isinstance(error, jax.errors.JaxRuntimeError) and (
        "RESOURCE_EXHAUSTED" in said or "out of memory" in said.lower()
    )
