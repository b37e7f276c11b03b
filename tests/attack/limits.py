"""Limits of time that hold on a busy machine too: work is measured in CPU time, hangs in generous wall time."""

import faulthandler
import time
from collections.abc import Iterator
from contextlib import contextmanager

HANG = 60.0  # seconds of wall time from which on something hangs, however busy the machine is


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block computes for longer than this, or takes HANG in all.

    CPU time of this thread only: what others compute at the same time, BLAS and XLA included, is not this block's
    doing, and threads that spin while they wait would count. Waiting is left to the second limit.
    """
    started, wall = time.thread_time(), time.monotonic()
    yield
    worked, waited = time.thread_time() - started, time.monotonic() - wall
    assert worked < seconds, f"computed for {worked:.2f} s"
    assert waited < HANG, f"took {waited:.0f} s"


@contextmanager
def end_if_it_hangs(seconds: float = HANG) -> Iterator[None]:
    """End the process with its stack if the block is not done by then. For processes of their own."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
