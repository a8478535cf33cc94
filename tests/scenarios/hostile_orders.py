"""Orders as their clients write them, byte by byte, and what each is to come to: said here from the messages'
schemas and `tables/values.py` alone, and nothing is asked of the code that is tested.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agents.gateway import cards
from agents.messages import StockReceived
from tests.scenarios.world import SKUS


def long(number: int) -> bytes:
    left, out = (number << 1) if number >= 0 else (-number << 1) - 1, bytearray()
    while left > 0x7F:
        out.append(0x80 | (left & 0x7F))
        left >>= 7
    return bytes([*out, left])


def text(data: str | bytes) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return long(len(raw)) + raw


def array(items: Sequence[bytes]) -> bytes:
    return (long(len(items)) + b"".join(items) if items else b"") + b"\0"


@dataclass(frozen=True)
class Order:
    """An order as its client has it: any text may be any bytes."""

    order_id: str | bytes
    lines: tuple[tuple[str, int], ...] = (("sku-1", 1),)
    cents: int = 100
    card: str = cards.ACCEPTED
    country: str = "US"
    customer: str | bytes = "customer"
    files: tuple[bytes, ...] = ()

    def encoded(self) -> bytes:
        lines = array([text(sku) + long(units) for sku, units in self.lines])
        files = array([text("file") + text("image/png") + text(data) for data in self.files])
        said = text(self.order_id), text(self.customer), lines, long(self.cents)
        return b"".join((*said, text(self.card), text(self.country), files))

    def outcome(self) -> str:
        if not self.lines:
            return "no_lines"
        if len(self.lines) > 10_000:
            return "too_many_lines"
        if sum(len(sku) for sku, _ in self.lines) > 500_000:
            return "order_too_large"
        asked: dict[str, int] = {}
        for sku, units in self.lines:
            asked[sku] = asked.get(sku, 0) + units
        if any(sku not in STOCKED or units > 90_000 for sku, units in asked.items()):
            return "out_of_stock"
        if self.cents and (refusal := self._charged()):
            return refusal
        return "confirmed" if self.country == "US" else "unsupported_destination"

    def _charged(self) -> str:
        assert isinstance(self.order_id, str)
        operation = f"capture:{self.order_id}"
        is_name = len(operation) <= 200 and not any(c < " " or c == "\x7f" for c in operation)
        is_card = self.card.startswith("tok_") and self.card[4:].isascii() and self.card[4:].isalnum()
        known = {cards.ACCEPTED: "", cards.DECLINED: "card_declined"}
        if not is_name or not (is_card or self.card in known):
            return "invalid_charge"
        return known.get(self.card, "unknown_card")


STOCKED = frozenset(f"sku-{n}" for n in range(SKUS))


def reads(topic: str, data: bytes) -> bool:
    """Whether bytes are of a message's schema, to the last of them; a careful reader of its own."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if value >> 64:
            raise ValueError("too long")
        return (value >> 1) ^ -(value & 1)

    def sized() -> bytes:
        nonlocal at
        size = number()
        if size < 0 or at + size > len(data):
            raise ValueError("cut off")
        at += size
        return data[at - size : at]

    def each(item: Callable[[], object]) -> None:
        while count := number():
            if count < 0:
                number()
            if abs(count) > len(data):
                raise ValueError("cut off")
            for _ in range(abs(count)):
                item()

    def word() -> str:
        return sized().decode()

    try:
        word()
        if topic == StockReceived.TOPIC:
            number()
        else:
            word()
            each(lambda: (word(), number()))
            number(), word(), word()
            each(lambda: (word(), word(), sized()))
    except (ValueError, IndexError):
        return False
    return at == len(data)
