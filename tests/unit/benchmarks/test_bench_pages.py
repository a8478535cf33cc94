"""What the measurement of pages fills the lanes with."""

from benchmarks.pages import key, letters, partition_of, rows
from schemas import latest
from streams.engine.waiting.dead_letters.row import decode_letter
from streams.model.codecs import AvroCodec, Schemas, decode_row
from streams.model.layout import Layout
from streams.model.row_keys import split_row_key
from tables.orders import ORDERS, TrackedOrder

LAYOUT = Layout("orders", 16, 4)


def test_one_row_in_a_hundred_is_an_unshipped_order() -> None:
    codec = AvroCodec(TrackedOrder, latest(ORDERS.name), Schemas())
    made = list(rows(1000, LAYOUT))
    assert [split_row_key(name)[0].decode() for _, name, _, _ in made] == [key(n) for n in range(1000)]
    assert {partition for partition, *_ in made} == set(range(16))
    assert sum(decode_row(codec, value).status == "pending" for _, _, value, _ in made) == 10


def test_each_hundredth_order_has_a_dead_letter_beside_it() -> None:
    made = list(letters(1000, LAYOUT))
    found = [(partition, decode_letter(value)) for partition, _, value, _ in made]
    assert [letter.key for _, letter in found] == [key(n).encode() for n in range(0, 1000, 100)]
    assert all(partition == partition_of(letter.key or b"", LAYOUT) for partition, letter in found)
