"""When a worker that cannot commit gives its lanes away, and when it asks for them again."""

from streams.policy.fitness import GIVE_AWAY_AFTER, PAUSE, PAUSE_CAP, Fitness


class Worker:
    """Looks each five seconds."""

    def __init__(self) -> None:
        self.fitness = Fitness()
        self.now = 1000.0
        self.clock = 1_800_000_000.0

    def for_seconds(self, seconds: float, *, waited: float = 0.0, others: bool = True) -> list[float]:
        """The times at which it tells the group something."""
        told = []
        end = self.now + seconds
        while self.now < end:
            self.now += 5.0
            waited += 5.0 if waited else 0.0
            has_lanes = self.fitness.fit
            if self.fitness.look(
                waited=waited if has_lanes else 0.0,
                others=others,
                monotonic=self.now,
                wall=self.clock + self.now,
            ):
                told.append(self.now)
        return told


def test_lanes_that_wait_long_for_the_machine_are_given_away() -> None:
    worker = Worker()
    assert worker.for_seconds(GIVE_AWAY_AFTER - 10, waited=1.0) == []
    assert worker.fitness.fit
    assert len(worker.for_seconds(20, waited=GIVE_AWAY_AFTER)) == 1
    assert not worker.fitness.fit


def test_alone_it_keeps_its_lanes() -> None:
    worker = Worker()
    assert worker.for_seconds(10_000, waited=1.0, others=False) == []


def test_it_asks_again_ever_more_seldom() -> None:
    worker = Worker()
    told = worker.for_seconds(20_000, waited=GIVE_AWAY_AFTER)
    away = [asked - given for given, asked in zip(told[::2], told[1::2], strict=False)]
    assert away[:5] == [PAUSE, 2 * PAUSE, 4 * PAUSE, 8 * PAUSE, PAUSE_CAP]


def test_a_clock_that_was_set_is_tried_at_once() -> None:
    worker = Worker()
    worker.for_seconds(20, waited=GIVE_AWAY_AFTER)
    assert not worker.fitness.fit
    assert worker.for_seconds(20) == []
    worker.clock -= 3700
    assert len(worker.for_seconds(5)) == 1
    assert worker.fitness.fit


def test_after_a_good_while_pauses_are_short_again() -> None:
    worker = Worker()
    worker.for_seconds(2 * PAUSE + 10, waited=GIVE_AWAY_AFTER)
    worker.for_seconds(10 * PAUSE)
    assert worker.fitness.fit
    given, asked = worker.for_seconds(PAUSE + 20, waited=GIVE_AWAY_AFTER)[:2]
    assert asked - given == PAUSE
