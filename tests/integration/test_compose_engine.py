"""docker-compose.yml in a real engine: pages, orders, a kill, an upgrade, an end, and no secret anywhere."""

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.integration.engine import (
    BUILT,
    HEALTHY,
    OURS,
    PORTS,
    ROOT,
    WORKERS,
    Composed,
    composed,
    run,
    why_no_engine,
)
from tests.integration.test_compose_services import free_port
from tests.waiting import BOUND, eventually

pytestmark = [
    pytest.mark.verify(
        "minutes in a container engine; tests/unit/test_compose.py holds the file to its form"
    ),
    pytest.mark.timeout(2 * BUILT),
    pytest.mark.promise("containers", "where a container engine answers"),
]

IMAGE = "steadfaust:verify"
SKUS = 5


@pytest.fixture(scope="module")
def image() -> str:
    """Our image, made by the command of docs/deploy.md."""
    if why := why_no_engine():
        pytest.skip(why)
    run(
        *("docker", "compose", "--file", str(ROOT / "docker-compose.yml"), "build"),
        bound=BUILT, ORDERS_IMAGE=IMAGE,
    )  # fmt: skip
    return IMAGE


@pytest.fixture
def next_image(image: str) -> str:
    """Another version: it differs from the image by a file."""
    run(
        "docker", "build", "--quiet", "--tag", f"{image}-next", "-", text=f"FROM {image}\nLABEL of=the-next\n"
    )
    return f"{image}-next"


class Orders:
    """A client of the orders API: it repeats a request until it is answered, under one idempotency key."""

    def __init__(self, made: Composed) -> None:
        self._url = f"http://127.0.0.1:{made.ports['API_PORT']}/orders"
        self.ids: list[str] = []

    def place(self, count: int) -> None:
        for _ in range(count):
            number = len(self.ids)
            line = {"sku": f"s{number % SKUS}", "units": 1}
            order = {"customer": f"c{number % 7}", "lines": [line], "total_cents": 100 + number}
            body = json.dumps({**order, "card": "tok_accepted", "country": "SE"}).encode()
            headers = {"Content-Type": "application/json", "Idempotency-Key": f"order-{number}"}
            self.ids.append(self._answer(Request(self._url, body, headers))["order_id"])

    def place_until(self, ended: threading.Event) -> None:
        """Place a few each second."""
        while not ended.wait(0.2):
            self.place(1)

    def until_confirmed(self) -> None:
        waiting = set(self.ids)

        def all_are() -> bool:
            for each in list(waiting):
                status = self._answer(Request(f"{self._url}/{each}"))["status"]
                assert status != "cancelled", f"{each} has stock, and a card that pays"
                if status == "confirmed":
                    waiting.discard(each)
            return not waiting

        eventually(all_are, f"{len(self.ids)} orders are confirmed", every=1.0, bound=HEALTHY)

    def _answer(self, request: Request) -> dict[str, str]:
        deadline = time.monotonic() + HEALTHY
        while True:
            try:
                with urlopen(request, timeout=BOUND) as answer:
                    found: dict[str, str] = json.load(answer)
                    return found
            except OSError as error:  # a refused connection, a reset one, and answers of 400 and above
                passing = not isinstance(error, HTTPError) or error.code >= 500 or error.code in (409, 429)
                if not passing or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)


def check_pages(made: Composed) -> None:
    """Each page that the first one leads to."""
    status, first = made.page("/")
    assert status == 200, first
    paths = sorted(set(re.findall(r'href="(/[a-z][a-z/-]*)"', first)))
    assert len(paths) > 3, first
    for path in ("/login", *paths):
        status, text = made.page(path)
        assert status == 200, f"{path}: {status} {text}"


def check_containers(made: Composed) -> None:
    """The user of the image can write its volume and /tmp, and nothing else."""
    look = (
        "id -u; id -g; for f in /x /app/x /opt/steadfaust/x; do touch $f 2> /dev/null || echo refused; done"
    )
    for service in OURS:
        found = made.inside(service, "sh", "-c", f"{look}; grep CapBnd /proc/self/status").split()
        assert found == ["10001", "10001", *["refused"] * 3, "CapBnd:", "0" * 16], service
    for service in ("gateway", "worker-1"):
        files = made.inside(service, "ls", "--almost-all", "/var/lib/steadfaust").split()
        assert files, service
        assert [each for each in files if each.startswith(".")] == [], "a file of a skeleton home directory"


def check_no_secret(made: Composed) -> None:
    """Not in a log, a container's configuration or environment, an image, or a process's command line."""
    secrets = {
        line.strip()
        for file in (made.folder / "secrets").iterdir()
        for line in file.read_text().splitlines()
        if "CERTIFICATE" not in line and len(line.strip()) >= 20
    }
    public = (made.folder / "secrets" / "ca.pem").read_text()
    secrets = {each for each in secrets if each not in public}
    passwords = re.findall(r"[0-9a-f]{48}", " ".join(sorted(secrets)))
    assert len(set(passwords)) >= 6
    ids = made.compose("ps", "--all", "--quiet").split()
    running = made.compose("ps", "--quiet").split()
    places = {
        "logs": made.compose("logs", "--no-color"),
        "inspect": run("docker", "inspect", *ids),
        "processes": "".join(run("docker", "top", each, "-eo", "pid,args") for each in running),
        "environment": "".join(made.inside(each, "env") for each in OURS),
        "image": run("docker", "image", "inspect", made.image)
        + run("docker", "history", "--no-trunc", made.image),
    }
    for name, text in places.items():
        assert [each for each in {*secrets, *passwords} if each in text] == [], f"a secret is in {name}"


def check_end(made: Composed) -> None:
    """All end by themselves within their grace: a process that is killed has 137."""
    made.compose("stop", bound=HEALTHY)
    ended = {service: each["State"]["ExitCode"] for service, each in made.inspected().items()}
    assert [service for service, code in ended.items() if code == 137] == []
    assert {service: code for service, code in ended.items() if service in OURS and code} == {}


def charges(made: Composed) -> int:
    """How many payments the gateway has captured. An order that paid twice, by any name, is one too many."""
    select = "select count(*) from operations where kind = 'charge' and status = 'captured'"
    ledger = "file:/var/lib/steadfaust/gateway/ledger.sqlite?mode=ro"
    code = f"import sqlite3; print(*sqlite3.connect({ledger!r}, uri=True).execute({select!r}).fetchone())"
    return int(made.inside("gateway", "python", "-c", code))


@pytest.fixture
def ports() -> dict[str, int]:
    return {name: free_port() for name in PORTS}


@pytest.fixture
def plain(tmp_path: Path, image: str, ports: dict[str, int]) -> Iterator[Composed]:
    with composed(tmp_path, image, ports, "plain") as made:
        yield made


def deliver(made: Composed) -> None:
    made.inside(
        "worker-1",
        "python",
        "-m",
        "agents.inventory",
        "d-1",
        *(f"s{number}=100000" for number in range(SKUS)),
    )


def test_compose_survives_a_kill_and_an_upgrade_and_ends(plain: Composed, next_image: str) -> None:
    deliver(plain)
    orders = Orders(plain)
    orders.place(20)
    orders.until_confirmed()
    check_pages(plain)
    check_containers(plain)

    ended = threading.Event()
    client = threading.Thread(target=orders.place_until, args=(ended,))
    client.start()
    try:
        plain.kill("worker-2")
        plain.image = next_image
        plain.compose("run", "--rm", "migrate")
        for worker in WORKERS:
            plain.up("--no-deps", worker)
        plain.environment["MORE_WORKERS"] = "1"
        plain.up()
    finally:
        ended.set()
        client.join()
    orders.until_confirmed()
    assert charges(plain) == len(orders.ids)
    found = plain.inspected()
    assert {found[each]["Config"]["Image"] for each in (*OURS, "more-workers")} == {next_image}
    assert plain.page("/")[0] == 200
    check_no_secret(plain)
    check_end(plain)


@pytest.mark.parametrize("mode", ["tls", "cdc"])
def test_compose_confirms_orders(tmp_path: Path, image: str, ports: dict[str, int], mode: str) -> None:
    with composed(tmp_path, image, ports, mode) as made:
        deliver(made)
        orders = Orders(made)
        orders.place(20)
        orders.until_confirmed()
        assert charges(made) == len(orders.ids)
        check_pages(made)
        check_no_secret(made)
        check_end(made)


def test_the_image_runs_as_a_user_without_a_name(image: str) -> None:
    """As OpenShift starts it: some uid, group 0."""
    look = 'id -u; id -g; touch "$HOME/x" "$STEADFAUST_VAR/x" && steadfaust --help > /dev/null && echo runs'
    rights = ("--user", "123456:0", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
    found = run("docker", "run", "--rm", *rights, "--volume", "/var/lib/steadfaust", image, "sh", "-c", look)
    assert found.split() == ["123456", "0", "runs"]
