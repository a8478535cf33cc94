"""Each note of the rolling deploy is counted once in its order's row."""

import pytest

from chaos.evidence.calls import NOTES_TOPIC
from chaos.evidence.consequences import SentMessage
from chaos.judges.noted import counted, judge_notes
from streams.model.codecs import AvroCodec, Schemas, encode_row
from streams.model.message import Row
from streams.model.row_keys import row_key
from streams.staging.keys import store_key

SCHEMA = '{"type": "record", "name": "Notes", "fields": [{"name": "count", "type": "long"}]}'


class Notes(Row, frozen=True, kw_only=True):
    count: int


def tables(**counts: int) -> list[dict[str, dict[bytes, bytes]]]:
    """The state of two lanes, the second without any note."""
    codec = AvroCodec(Notes, SCHEMA, Schemas())
    rows = {
        store_key(3, row_key(order_id.encode())): encode_row(codec, Notes(count=count))
        for order_id, count in counts.items()
    }
    return [{"notes": rows}, {}]


def notes(order_id: str, *ids: str) -> list[SentMessage]:
    return [
        SentMessage(NOTES_TOPIC, 3, offset, order_id, name, "demo", "") for offset, name in enumerate(ids)
    ]


def test_the_counts_are_read_from_the_table() -> None:
    assert counted(tables(one=2, two=700)) == {"one": 2, "two": 700}


@pytest.mark.parametrize(
    ("made", "sent", "counts", "passed"),
    [
        pytest.param(0, [], {}, True, id="no deploy"),
        pytest.param(2, notes("one", "n-0", "n-1"), {"one": 2}, True, id="each once"),
        pytest.param(2, notes("one", "n-0", "n-1", "n-0"), {"one": 2}, True, id="one sent twice"),
        pytest.param(2, notes("one", "n-0", "n-1"), {"one": 3}, False, id="one counted twice"),
        pytest.param(2, notes("one", "n-0", "n-1"), {"one": 1}, False, id="one not counted"),
        pytest.param(2, notes("one", "n-0", "n-1"), {}, False, id="none counted"),
        pytest.param(2, notes("one", "n-0"), {"one": 1}, False, id="one not in the topic"),
        pytest.param(0, [], {"one": 1}, False, id="one out of nothing"),
        pytest.param(1, notes("one", "n-0"), {"two": 1}, False, id="counted for another order"),
    ],
)
def test_each_counts_once(made: int, sent: list[SentMessage], counts: dict[str, int], passed: bool) -> None:
    assert judge_notes(made, sent, counts).passed is passed
