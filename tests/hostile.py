"""Batches that other clients may write, or a disk may leave, and no reader of ours may stop for."""

from collections.abc import Callable
from functools import partial

from streams.kafka.records.batches import MAX_HEADERS
from streams.testing.batches import CODECS, batch, framed, part, record, varint


def three(bad: bytes) -> list[bytes]:
    return [record(0, b"k", b"first"), bad, record(2, b"k", b"third")]


BEGIN = b"\0\0\x02" + part(b"k") + part(b"v")
#: Records that are damaged where they stand second in their batch; each has the key `k`.
DAMAGED = {
    "a header's name that is not UTF-8": record(1, b"k", b"v", [(b"\xff\xfe", b"x")]),
    "a header without a name": framed(BEGIN + varint(1) + varint(-1) + part(b"x")),
    "a negative number of headers": framed(BEGIN + varint(-1)),
    "more headers than there are": framed(BEGIN + varint(3)),
    "too many headers": framed(BEGIN + varint(MAX_HEADERS + 1) + b"\0\0" * (MAX_HEADERS + 1)),
    "a value longer than the record": framed(b"\0\0\x02" + part(b"k") + varint(1 << 40) + b"v"),
    "bytes left over": framed(BEGIN + varint(0) + b"more"),
    "an offset of before": record(0, b"k", b"v"),
    "an offset of behind": record(2, b"k", b"v"),
    "an offset far behind": record(1 << 40, b"k", b"v"),
}  # fmt: skip
#: What no record can be told from; the rest of the batch is one.
UNFRAMED = {
    "a negative length": varint(-5) + b"rest",
    "no length": b"\xff" * 11,
    "more than there is": varint(1 << 30) + b"rest",
    "nothing at all": b"\0\0\0\0",
}
DATA = bytes(range(256)) * 8
#: Batches that cannot be opened: their codec and what stands for their five records.
UNOPENED = {
    "an unknown codec": (7, b"whatever" * 9),
    "no gzip": (1, b"whatever" * 9),
    "no snappy": (2, b"\xff" * 50),
    "a snappy block too long": (2, CODECS["snappy"][1](b"x")[:16] + b"\x7f\xff\xff\xffxx" * 9),
    "no lz4": (3, b"whatever" * 9),
    "no zstd": (4, b"whatever" * 9),
    **{f"{codec}, cut off": (n, bytes(make(DATA))[:-9]) for codec, (n, make) in CODECS.items() if n},
}  # fmt: skip


def bomb(codec: str) -> bytes:
    """A sound batch of one record of 17 MiB, which is more than readers decompress."""
    return batch([record(0, b"k", bytes(17 << 20))], codec=codec)


#: None of them has more than a million bytes.
BOMBS: dict[str, Callable[[], bytes]] = {codec: partial(bomb, codec) for codec in CODECS if codec != "none"}
