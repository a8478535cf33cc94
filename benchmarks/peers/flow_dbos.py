"""The order as a workflow of DBOS: `worker` conducts what is in the queue, `send FILE RATE` puts it there.

What changes rows is a plain step: it can be repeated, so the order needs no second record of it, which a
transaction of DBOS would write beside the step's.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions
from psycopg_pool import ConnectionPool

from benchmarks.peers.shop import (
    CONFIRMED,
    OUT_OF_STOCK,
    READY,
    UNSUPPORTED_DESTINATION,
    Task,
    charge_of,
    refund_of,
    say_began,
    shop_from_environment,
    task_from_arguments,
)

QUEUE = "orders"
WORKFLOW = "conduct"
VERSION = "1"
#: Seconds between two looks at the queue; the default of 1 s would add half of it to each order.
LOOK_EVERY = 0.1
#: Connections of a worker for its steps, beside the 20 that DBOS has for itself.
CONNECTIONS = 16
#: Workflows that a sender puts into the queue in one transaction, when all are due at once.
AT_ONCE = 100
SENDERS = 8

SHOP = shop_from_environment()
SYSTEM = SHOP.postgres.replace("postgresql://", "postgresql+psycopg://", 1)

pool = ConnectionPool(
    SHOP.postgres, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs={"autocommit": True}, open=False
)
local = threading.local()


def ask(function: str, *values: Any) -> Any:
    """Call one of the shop's functions, in a transaction of its own."""
    places = ", ".join(["%s"] * len(values))
    with pool.connection() as connection:
        row = connection.execute(f"SELECT {function}({places})", values).fetchone()
    return row[0] if row else None


def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask the gateway, over a connection that the thread keeps."""
    connection = getattr(local, "gateway", None)
    if connection is None:
        address = urlsplit(SHOP.gateway)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        local.gateway = connection
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body_of_answer = answer.read()
    except (http.client.HTTPException, OSError):
        local.gateway = None
        connection.close()
        raise
    if answer.status not in (200, 201):
        raise RuntimeError(f"the gateway answered {answer.status}: {body_of_answer[:200]!r}")
    done: dict[str, Any] = json.loads(body_of_answer)
    return done


# A request without an answer is repeated, as the other contenders do.
RETRIED: dict[str, Any] = {"retries_allowed": True, "max_attempts": 10}


@DBOS.step(**RETRIED)
def reserve(order: dict[str, Any]) -> bool:
    """Set aside every piece, or none."""
    return bool(ask("reserve", order["order_id"], order["skus"], order["units"]))


@DBOS.step(**RETRIED)
def release(order: dict[str, Any]) -> None:
    """Give back what is set aside."""
    ask("let_go", order["order_id"], "released")


@DBOS.step(**RETRIED)
def charge(order: dict[str, Any]) -> str:
    """Charge the card; why it was declined, if it was."""
    if not order["cents"]:
        return ""
    return str(post("/charges", charge_of(order))["reason"])


@DBOS.step(**RETRIED)
def refund(order: dict[str, Any]) -> None:
    """Give the money back."""
    if order["cents"]:
        post("/refunds", refund_of(order))


@DBOS.step(**RETRIED)
def schedule(order: dict[str, Any]) -> bool:
    """Schedule the shipment, if we ship to where it goes."""
    return bool(ask("schedule", order["order_id"], order["country"]))


@DBOS.step(**RETRIED)
def settle(order: dict[str, Any], outcome: str) -> None:
    """The order has come to its end."""
    ask("settle", order["order_id"], outcome)


@DBOS.workflow(name=WORKFLOW)
def conduct(order: dict[str, Any]) -> str:
    """The order's way, and back."""
    outcome = CONFIRMED
    if not reserve(order):
        outcome = OUT_OF_STOCK
    elif declined := charge(order):
        release(order)
        outcome = declined
    elif not schedule(order):
        refund(order)
        release(order)
        outcome = UNSUPPORTED_DESTINATION
    settle(order, outcome)
    return outcome


def work() -> None:
    """Conduct orders until the process gets SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    config: DBOSConfig = {
        "name": "orders",
        "system_database_url": SYSTEM,
        "application_version": VERSION,
        "executor_id": SHOP.worker,
        "log_level": "WARNING",
    }
    DBOS(config=config)
    pool.open(wait=True)
    DBOS.launch()
    DBOS.register_queue(
        QUEUE, worker_concurrency=SHOP.in_hand, polling_interval_sec=LOOK_EVERY, on_conflict="always_update"
    )
    print(READY, flush=True)
    ended.wait()
    os._exit(0)  # what is in hand is durable; an orderly end would wait for each order of its threads


def options(order: dict[str, Any]) -> EnqueueOptions:
    """How an order is put into the queue."""
    return {
        "queue_name": QUEUE,
        "workflow_name": WORKFLOW,
        "workflow_id": order["order_id"],
        "app_version": VERSION,
    }


def send(task: Task) -> None:
    """Submit all orders, by a few threads."""
    engine = sqlalchemy.create_engine(SYSTEM, pool_size=SENDERS)
    client = DBOSClient(system_database_engine=engine, application_name="orders")

    def some(orders: list[dict[str, Any]]) -> None:
        with engine.begin() as connection:
            for each in orders:
                client.enqueue_in_transaction(connection, options(each), each)

    def one(order: dict[str, Any]) -> None:
        client.enqueue(options(order), order)

    with engine.connect():
        began = say_began()
    with ThreadPoolExecutor(SENDERS) as threads:
        if task.per_second:
            sent = []
            for number, each in enumerate(task.orders):
                time.sleep(max(0.0, task.due(began, number) - time.time()))
                sent.append(threads.submit(one, each))
        else:
            starts = range(0, len(task.orders), AT_ONCE)
            sent = [threads.submit(some, task.orders[start : start + AT_ONCE]) for start in starts]
    for done in sent:
        done.result()
    client.destroy()


if __name__ == "__main__":
    work() if sys.argv[1] == "worker" else send(task_from_arguments())
