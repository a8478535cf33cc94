"""How many orders to place: as many as the system settles in a few seconds, whatever the machine. Pure.

By Little's law, what is under way is what is settled in a second times how long it takes. So no more are
under way than were settled lately in the time that an order may take, and a part more, to find out whether
it could be faster. Where nothing is settled yet, a few feel their way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class OrdersSeen(NamedTuple):
    """What is seen of the orders in the system.

    Attributes:
        under_way: orders that are placed and have not come to an end.
        settled: orders that came to their end within the last `DemoPace.seconds`.
        took: how long these were under way, the half of them at least, in seconds.
        oldest: how long the first of those under way is so, in seconds.
    """

    under_way: int
    settled: int
    took: float
    oldest: float


@dataclass(frozen=True, slots=True)
class DemoPace:
    """How long orders may be under way.

    Attributes:
        seconds: as long as that, on the whole.
        more: how many times what was settled may be under way: over 1, or the pace could only fall.
        least: so many may be under way, however slow the system is.
        most: and no more than so many, however fast it is.
        patience: seconds that the oldest may be under way before only `least` may be beside it. Well under a
            saga's time limit for a step, and over what a card that finds the gateway unavailable waits.
    """

    seconds: float = 2.0
    more: float = 1.5
    least: int = 24
    most: int = 1000
    patience: float = 12.0

    def room(self, seen: OrdersSeen) -> int:
        """How many to place now."""
        if seen.oldest > self.patience:
            return max(0, self.least - seen.under_way)
        at_this_pace = seen.settled * self.seconds / max(self.seconds, seen.took)
        allowed = min(self.most, max(self.least, int(self.more * at_this_pace)))
        return max(0, allowed - seen.under_way)
