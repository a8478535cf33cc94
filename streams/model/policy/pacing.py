"""How long a lane rests between two transactions."""

from __future__ import annotations

#: A lane rests so many times as long as its last transaction took, but no longer than that, in seconds.
TIMES = 3.0
LONGEST_REST = 0.1


def rest(spent: float, since: float, linger: float) -> float:
    """Seconds until the next transaction begins; 0 or less: at once.

    What is left of the machine shows in what a transaction takes: a few milliseconds while it is idle, a
    hundred and more where every lane commits as fast as it can. The price of a transaction is mostly that of
    its partitions, whatever is in them, so those that take long are better fewer and larger.

    Args:
        spent: what the last transaction took.
        since: how long ago it ended; more than the rest where a lane was idle, so that it does not wait.
        linger: what is waited in any case.
    """
    return max(linger, min(max(spent, 0.0) * TIMES, LONGEST_REST) - max(since, 0.0))
