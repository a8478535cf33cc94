"""Decides whether a worker that cannot commit gives its lanes to others, without I/O (docs/adr/0051).

This is only for problems of its machine, such as its clock or disk, because problems of the cluster affect
every worker. It asks for lanes again after a pause, which grows each time, or when its clock is changed.
"""

from __future__ import annotations

#: Seconds that a lane waits for its machine before the worker gives its lanes away.
GIVE_AWAY_AFTER = 60.0
#: Seconds that a worker goes without lanes; doubled each time, up to the cap.
PAUSE, PAUSE_CAP = 300.0, 3600.0
#: Seconds by which the clock must change for the worker to ask for lanes at once.
CLOCK_SET = 30.0


class Fitness:
    """The fitness of one worker. `monotonic` and `wall` are its two clocks, in seconds.

    Attributes:
        fit: whether it wants lanes.
    """

    def __init__(self) -> None:
        self.fit = True
        self._pause = PAUSE
        self._until = 0.0
        self._drift = 0.0
        self._well_since: float | None = None

    def look(self, *, waited: float, others: bool, monotonic: float, wall: float) -> bool:
        """Update `fit`. Returns True if the worker must rejoin the group. `waited`: how many seconds
        a lane has waited for the machine at most, 0 if none waits. `others`: whether there are other members.
        """
        if not self.fit:
            if monotonic < self._until and abs(wall - monotonic - self._drift) < CLOCK_SET:
                return False
            self.fit, self._well_since = True, None
            return True
        if not waited:
            self._well_since = monotonic if self._well_since is None else self._well_since
            if monotonic - self._well_since > self._pause:
                self._pause = PAUSE
            return False
        self._well_since = None
        if waited < GIVE_AWAY_AFTER or not others:
            return False
        self.fit, self._until, self._drift = False, monotonic + self._pause, wall - monotonic
        self._pause = min(self._pause * 2, PAUSE_CAP)
        return True
