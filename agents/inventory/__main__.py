"""`python -m agents.inventory DELIVERY SKU=UNITS...`: puts stock on the shelves, once for each delivery.

The settings say where Kafka is (docs/settings.md). A delivery that is sent again changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from agents.messages import StockReceived
from agents.settings import OrderSettings
from schemas import latest
from streams.brokers import Bootstrap
from streams.errors import SteadfaustError
from streams.model.codecs import Schemas, avro
from streams.runtime.client import Producer
from tables.values import MAX_UNITS

#: Who sends these messages: ids are unique within it.
SOURCE = "deliveries"


async def deliver(bootstrap: Bootstrap, delivery: str, received: Sequence[StockReceived]) -> None:
    """Send what came in. Raises SteadfaustError when Kafka does not take it."""
    async with Producer(bootstrap, avro(latest, Schemas()), source=SOURCE) as producer:
        for each in received:
            await producer.send(each, message_id=f"{delivery}-{each.sku}")


def received(text: str) -> StockReceived:
    """Read SKU=UNITS. Raises ValueError."""
    sku, _, units = text.rpartition("=")
    if not (sku and units.isascii() and units.isdigit() and 1 <= int(units) <= MAX_UNITS):
        raise ValueError(text)
    return StockReceived(sku=sku, units=int(units))


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when Kafka has the delivery, 1 when it has not, 2 for arguments that make no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m agents.inventory", description="Put stock on the shelves."
    )
    parser.add_argument("delivery", help="its name: repeated under the same one, a delivery changes nothing")
    parser.add_argument("received", nargs="+", type=received, metavar="SKU=UNITS", help="pieces that came in")
    given = parser.parse_args(arguments)
    try:
        asyncio.run(deliver(OrderSettings.read_or_exit().brokers(), given.delivery, given.received))
    except SteadfaustError as error:
        sys.stderr.write(f"error: the delivery is not known to be on the shelves: {error}; send it again\n")
        return 1
    sys.stdout.write(
        f"{given.delivery}: {', '.join(f'{each.units} {each.sku}' for each in given.received)}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
