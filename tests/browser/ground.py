"""What the browser looks at: two real workers on a real stack under load, with orders of each kind in it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from agents.commands import OrderSubmitted
from agents.messages import Order, OrderPlaced
from streams.host.slots import addresses
from streams.local import Stack, declared, declared_buckets, local_stack
from tests.scenarios.steady import SteadyLoad
from tests.scenarios.world import APP, Worker, World, order

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
#: Orders a second in the background: enough to see pages change, on two cores that have a browser, too.
RATE = 4

#: What the workers are shown, on their own machine, too.
OPERATOR, VIEWER = "the-token-of-operators", "the-token-of-viewers"

SCRIPT = "<script>window.ran = 1; alert(1)</script>"
IMAGE = '"><img src=x onerror="window.ran = 1; alert(2)">'
#: A key that is hostile to pages and to addresses.
HOSTILE = f"hostile-{IMAGE}/../?&#{SCRIPT}"


@dataclass
class Ground:
    """The stack, its two workers, and what they have been given."""

    stack: Stack
    world: World
    workers: list[Worker]
    load: SteadyLoad
    till: Path
    postgres: str = ""

    def address(self, worker: Worker) -> str:
        """Where this worker's pages are, without a slash at the end."""
        pid = str(worker.process.pid)
        for lock in self.world.var.glob(f"workers/{APP}/slot-*/lock"):
            if lock.read_text().strip() == pid:
                url = urlsplit((lock.parent / "url").read_text().strip())
                return f"{url.scheme}://{url.netloc}"
        raise AssertionError(f"worker {pid} holds no slot of {addresses(self.world.var / 'workers' / APP)}")

    def key_of(self, worker: Worker, prefix: str = "") -> str:
        """The key of a settled order in one of this worker's lanes; one that begins so."""
        lanes = worker.lanes()
        for record in self.world.read("orders.order.confirmed.v1"):
            key: str = record.key.decode()
            if record.partition % 4 in lanes and key.startswith(prefix):
                return key
        raise AssertionError(f"no order was confirmed in lanes {lanes}")


def hostile_order() -> Order:
    """An order whose texts would run if they were not escaped."""
    plain, _ = order(5, "hostile")
    return msgspec.structs.replace(plain, order_id=HOSTILE, customer=SCRIPT)


@contextmanager
def ground_in(
    var: Path, *, databases: Sequence[str] = (), revive_after: float | None = None, **environment: str
) -> Iterator[Ground]:
    """All of it, until it is left. Stock has arrived, and the orders below have come to their ends. With
    `databases` there is PostgreSQL, too. A broker that is killed comes back after `revive_after` seconds.
    Workers have `environment`, too.
    """
    till = var / "till"
    processes, buckets = declared(PROJECT), declared_buckets(PROJECT)
    with local_stack(
        var, processes=processes, buckets=buckets, databases=databases, revive_after=revive_after
    ) as stack:
        world = World(
            stack.bootstrap,
            stack.url("gateway"),
            var,
            environment={
                "STEADFAUST_TILL": str(till),
                "STEADFAUST_EDIT_DEAD_LETTERS": "true",
                "STEADFAUST_RETRY_DELAYS": "1",
                "STEADFAUST_WEB_LOGIN": "true",
                "STEADFAUST_WEB_TOKEN": OPERATOR,
                "STEADFAUST_WEB_VIEWER_TOKEN": VIEWER,
                **environment,
            },
        )
        with world.closing():
            workers = [world.start_worker("tests.browser.worker") for _ in range(2)]
            world.until_shared(workers)
            world.receive_stock()
            _place(world)
            with SteadyLoad(world, "load", RATE) as load:
                yield Ground(stack, world, workers, load, till, stack.url("postgres") if databases else "")


def _place(world: World) -> None:
    """Orders of every outcome by choreography and by saga; what fails for good; what is hostile."""
    placed, submitted = world.place("placed", 12), world.place("saga", 12, orchestrated=True)
    hostile = hostile_order()
    refused = [order(number, "refused")[0] for number in (5, 7, 8, 9)]
    stuck, _ = order(2, "stuck")  # nobody ships there, so that its payment is to be given back
    bad, _ = order(6, "undecodable")
    placed_too = [(OrderPlaced(order=each), f"message-{each.order_id}") for each in refused]
    world.send([(OrderPlaced(order=hostile), "hostile-1"), *placed_too])
    world.send([(OrderSubmitted(order=stuck), "stuck-1")])
    world.send([(OrderPlaced(order=bad), f"undecodable-{SCRIPT}")], spoil=lambda value: value[:3])
    world.until_settled([*placed, *submitted, hostile.order_id])
