"""What the failures section puts into topics is what a lane would find there."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.failures.ground import event, events
from benchmarks.failures.letters import _letters
from benchmarks.failures.workload import FAILURES
from benchmarks.growth.ground import GrowthGround
from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import LetterState, decode_letter, local_key

PARTITIONS = 4


@pytest.fixture
def ground(tmp_path: Path) -> GrowthGround:
    return GrowthGround("nowhere:1", tmp_path, "failures-test", partitions=PARTITIONS, workload=FAILURES)


def test_a_share_of_the_events_fails_each_with_its_id(ground: GrowthGround) -> None:
    made = list(events(ground, 200, keys=50, fails=3, every=20))
    codec = ground.app.routes[ground.topic].codec
    assert Counter(codec.decode(value, None).fails for _, _, value, _ in made) == {3: 10, 0: 190}
    assert len({dict(headers)["ce_id"] for _, _, _, headers in made}) == 200
    assert {key for _, key, _, _ in made} == {b"k%d" % i for i in range(50)}
    assert event(ground, 7, b"k7")[0] == ground.layout.partition_of(b"k7")


def test_preloaded_letters_are_rows_that_an_operator_can_replay(ground: GrowthGround) -> None:
    errors: Counter[str] = Counter()
    for partition, key, value, headers in _letters(ground, 40):
        letter = decode_letter(value)
        assert store_key(partition, key) == local_key(letter)
        assert (letter.state, letter.handler, headers) == (LetterState.DEAD, "counting.count", [])
        assert ground.app.routes[letter.topic].codec.decode(letter.value or b"", None).fails == 0
        errors[letter.error_type] += 1
    assert errors == {"TransientError": 4, "ValueError": 36}
