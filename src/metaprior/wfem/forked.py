"""Processes forked after JAX was used: its threads do not survive a fork, and who waits for them waits forever."""

import os

_first_user: int | None = None  # the process that used JAX first


def check_not_forked() -> None:
    """Raise, rather than hang, if this process was forked from one that had called this before."""
    global _first_user
    _first_user = _first_user or os.getpid()
    if _first_user != os.getpid():
        raise RuntimeError(
            "This process was forked from one that had used JAX, whose threads do not survive a fork: a prior trained "
            "by gradients would hang here. Start processes with multiprocessing.get_context('spawn'), or fork before "
            "the first fit, load or prediction. The hierarchical priors of the default need no JAX and work after a "
            "fork."
        )
