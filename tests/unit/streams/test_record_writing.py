"""Records are written as aiokafka's builder writes them, and read back as what they are."""

from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from streams.kafka.clients import KafkaOptions
from streams.kafka.records.batches import Plain, read_batch
from streams.kafka.records.writing import PackedRecord, record_bytes
from streams.kafka.transactions.batches import pack
from streams.kafka.transactions.requests import Owner
from streams.ports import TP, Outgoing

HERE, NOW = TP("topic", 3), 1_764_000_000_000
DATA = st.none() | st.binary(max_size=80) | st.integers(0, 9000).map(bytes)
HEADERS = st.lists(st.tuples(st.text(max_size=80), DATA), max_size=12)
RECORDS = st.lists(st.builds(Outgoing, DATA, DATA, HEADERS), min_size=1, max_size=90)


def packed(record: Outgoing) -> PackedRecord:
    return PackedRecord(record_bytes(record))


@given(RECORDS, st.sampled_from([1, 100, 5000, 1 << 20]))
def test_records_come_back_in_batches_within_the_bound(records: list[Outgoing], most: int) -> None:
    found: list[Any] = []
    for batch in pack(HERE, records, NOW, KafkaOptions(max_batch=1 << 30), most):
        raw = bytes(batch.build(Owner("id", 7, 2), len(found)))
        assert len(raw) == batch.size
        assert batch.size <= most or batch.records == 1
        found += read_batch(HERE, raw, 1 << 30)
    assert [Outgoing(each.key, each.value, list(each.headers)) for each in found] == records
    assert {(type(each), each.timestamp) for each in found} == {(Plain, NOW)}


@given(RECORDS)
def test_a_batch_has_the_bytes_that_aiokafka_writes(records: list[Outgoing]) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 1, -1, -1, 0, 1 << 30)
    for number, (key, value, headers) in enumerate(records):
        builder.append(number, NOW, key, value, headers)
    builder.set_producer_state(7, 2, 5)
    (batch,) = pack(
        HERE, [packed(record) for record in records], NOW, KafkaOptions(max_batch=1 << 30), 1 << 30
    )
    assert batch.build(Owner("id", 7, 2), 5) == builder.build()


@given(st.builds(Outgoing, DATA, DATA, HEADERS.map(tuple)))
def test_a_packed_record_reads_as_what_it_was(record: Outgoing) -> None:
    assert Outgoing(*packed(record)) == record
    assert Outgoing(packed(record).key, packed(record).value, packed(record).headers) == record
