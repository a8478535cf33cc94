"""Whether a worker that cannot commit gives its lanes to others: a policy without I/O (docs/adr/0051).

Only for what is wrong with its machine, such as its clock or its disk: what is wrong with the cluster is so
for every worker. It asks for its lanes again after a pause, which grows each time, or when its clock was set.
"""

from __future__ import annotations

#: A lane that has waited for so long for its machine is given away, in seconds.
GIVE_AWAY_AFTER = 60.0
#: How long a worker goes without lanes, in seconds: doubled each time, up to the cap.
PAUSE, PAUSE_CAP = 300.0, 3600.0
#: Seconds by which the clock has to be set to be tried again at once.
CLOCK_SET = 30.0


class Fitness:
    """Of one worker. `monotonic` and `wall` are its two clocks, in seconds.

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
        """Decide anew; True: rejoin the group. `waited`: how long the lane has waited for its machine
        that has waited longest, 0 for none. `others`: whether the group has other members.
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
