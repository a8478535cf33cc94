"""The participants of the order that workflow engines conduct, the same for each of them.

Stock, shipping and the order's end are functions of PostgreSQL, one round trip and one transaction each;
repeated, they do nothing. Payments are the gateway's: it does each operation once. This module needs
nothing but Python: it runs in the peers' environment and in the project's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What a worker writes when it takes work, and a sender when it is connected.
READY = "ready"

OUT_OF_STOCK = "out_of_stock"
UNSUPPORTED_DESTINATION = "unsupported_destination"
CONFIRMED = "confirmed"

# Rows of stock are locked in the order of their SKUs: orders that want the same ones never wait in a circle.
SCHEMA = """
CREATE TABLE stock (
    sku text PRIMARY KEY,
    received int NOT NULL,
    on_hand int NOT NULL,
    reserved int NOT NULL DEFAULT 0,
    shipped int NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE destinations (country text PRIMARY KEY);
CREATE TABLE holds (
    order_id text PRIMARY KEY,
    skus text[] NOT NULL,
    units int[] NOT NULL,
    status text NOT NULL
);
CREATE TABLE shipments (order_id text PRIMARY KEY, country text NOT NULL, status text NOT NULL);
CREATE TABLE settled (order_id text PRIMARY KEY, outcome text NOT NULL, at double precision NOT NULL);

CREATE FUNCTION reserve(the_order text, wanted text[], pieces int[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE found_status text; enough boolean;
BEGIN
    SELECT status INTO found_status FROM holds WHERE order_id = the_order;
    IF FOUND THEN RETURN found_status = 'reserved'; END IF;
    PERFORM 1 FROM stock WHERE sku = ANY (wanted) ORDER BY sku FOR UPDATE;
    SELECT bool_and(coalesce(on_hand, 0) >= w.units) INTO enough
        FROM unnest(wanted, pieces) AS w(sku, units) LEFT JOIN stock USING (sku);
    IF enough THEN
        UPDATE stock SET on_hand = on_hand - w.units, reserved = reserved + w.units
            FROM unnest(wanted, pieces) AS w(sku, units) WHERE stock.sku = w.sku;
    END IF;
    INSERT INTO holds VALUES (the_order, wanted, pieces, CASE WHEN enough THEN 'reserved' ELSE 'refused' END);
    RETURN enough;
END $$;

CREATE FUNCTION let_go(the_order text, becomes text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE hold holds%ROWTYPE; leaves int := CASE WHEN becomes = 'shipped' THEN 1 ELSE 0 END;
BEGIN
    UPDATE holds SET status = becomes WHERE order_id = the_order AND status = 'reserved'
        RETURNING * INTO hold;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM 1 FROM stock WHERE sku = ANY (hold.skus) ORDER BY sku FOR UPDATE;
    UPDATE stock SET reserved = reserved - w.units,
            shipped = shipped + leaves * w.units, on_hand = on_hand + (1 - leaves) * w.units
        FROM unnest(hold.skus, hold.units) AS w(sku, units) WHERE stock.sku = w.sku;
END $$;

CREATE FUNCTION schedule(the_order text, goes_to text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE ships boolean := EXISTS (SELECT FROM destinations WHERE country = goes_to);
BEGIN
    INSERT INTO shipments VALUES (the_order, goes_to, CASE WHEN ships THEN 'scheduled' ELSE 'refused' END)
        ON CONFLICT DO NOTHING;
    RETURN ships;
END $$;

CREATE FUNCTION settle(the_order text, how text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF how = 'confirmed' THEN PERFORM let_go(the_order, 'shipped'); END IF;
    INSERT INTO settled VALUES (the_order, how, extract(epoch FROM clock_timestamp()))
        ON CONFLICT DO NOTHING;
END $$;
"""


@dataclass(frozen=True)
class PeerShop:
    """Where the participants are, and how many orders a worker has in hand."""

    postgres: str
    gateway: str
    engine: str
    worker: str
    in_hand: int

    def environment(self) -> dict[str, str]:
        """For the process that is to read it."""
        return {"BENCH_SHOP": json.dumps(vars(self))}


def shop_from_environment() -> PeerShop:
    """The shop of this process, from its environment."""
    return PeerShop(**json.loads(os.environ["BENCH_SHOP"]))


def charge_of(order: dict[str, Any]) -> dict[str, Any]:
    """The request to the gateway, under the order's own operation."""
    operation = f"capture:{order['order_id']}"
    return {"operation": operation, "cents": order["cents"], "card": order["card"]}


def refund_of(order: dict[str, Any]) -> dict[str, Any]:
    """What gives that back."""
    name = order["order_id"]
    return {"operation": f"refund:{name}", "charge_operation": f"capture:{name}"}


@dataclass(frozen=True)
class Task:
    """Orders to submit: all at once when `per_second` is 0."""

    orders: list[dict[str, Any]]
    per_second: float

    def due(self, began: float, number: int) -> float:
        """When an order is due, on the clock of `time.time`."""
        return began + number / self.per_second if self.per_second else began


def task_from_arguments() -> Task:
    """The file that the benchmark has written, and the rate."""
    _, _, path, per_second = sys.argv
    return Task(json.loads(Path(path).read_text()), float(per_second))


def say_began() -> float:
    """Tell the benchmark that the first order is due now; returns when that is."""
    began = time.time()
    print(json.dumps({"began": began}), flush=True)
    return began
