"""`python -m agents.inventory DELIVERY SKU=UNITS...`: puts stock on the shelves, once for each delivery.

The settings are those of a worker (docs/settings.md): from the workers it learns what is on the shelves then.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from agents.messages import StockReceived
from agents.settings import OrderSettings
from schemas import latest
from streams.errors import SteadfaustError
from streams.host.client import Producer
from streams.model.codecs import Schemas, avro
from streams.worker.tables import TableReader
from tables.stock import STOCK, StockLevel
from tables.values import MAX_UNITS

#: Who sends these messages: ids are unique within it.
SOURCE = "deliveries"


async def deliver(
    settings: OrderSettings, delivery: str, received: Sequence[StockReceived]
) -> dict[str, StockLevel]:
    """Send what came in, and wait until it is on the shelves; returns what each SKU has there.

    An order that overtook its stock would be cancelled. Raises SteadfaustError.
    """
    async with Producer(settings.brokers(), avro(latest, Schemas()), source=SOURCE) as producer:
        places = {
            each.sku: await producer.deliver(each, message_id=f"{delivery}-{each.sku}") for each in received
        }
    async with TableReader(STOCK, settings) as stock:
        return {sku: await stock.get(sku, after=place) or StockLevel() for sku, place in places.items()}


def received(text: str) -> StockReceived:
    """Read SKU=UNITS. Raises ValueError."""
    sku, _, units = text.rpartition("=")
    if not (sku and units.isascii() and units.isdigit() and 1 <= int(units) <= MAX_UNITS):
        raise ValueError(text)
    return StockReceived(sku=sku, units=int(units))


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the delivery is on the shelves, 1 when that is not known, 2 for arguments that make no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m agents.inventory", description="Put stock on the shelves."
    )
    parser.add_argument("delivery", help="its name: repeated under the same one, a delivery changes nothing")
    parser.add_argument("received", nargs="+", type=received, metavar="SKU=UNITS", help="pieces that came in")
    given = parser.parse_args(arguments)
    try:
        stock = asyncio.run(deliver(OrderSettings.read_or_exit(), given.delivery, given.received))
    except SteadfaustError as error:
        sys.stderr.write(f"error: the delivery is not known to be on the shelves: {error}; send it again\n")
        return 1
    for sku, level in stock.items():
        sys.stdout.write(f"{sku}: {level.on_hand} free, {level.reserved} set aside for orders\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
