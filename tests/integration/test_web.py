"""The pages of two real workers: Faust's server, our pages, and rows that the other worker has."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaProducer
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from streams.model.envelope import new_headers
from tests.integration.stacks import steadfaust
from tests.integration.worker_process import BIN, ROOT, address_of, ask, environment_of, start
from tests.waiting import BOUND, eventually

TOPIC = "web.parcel.seen.v1"
KEYS = [f"parcel-{n}" for n in range(20)]


def ask_json(url: str):
    return json.loads(ask(url)[2])


def two_free_ports() -> int:
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(BOUND)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def workers(kafka, tmp_path_factory) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Two workers by their addresses, which share the lanes, with a row for each key."""
    var, port = tmp_path_factory.mktemp("web"), two_free_ports()
    cut = {"PARTITIONS": 4, "LANES": 4, "WEB_PORT": port}
    environment = environment_of("web", kafka.bootstrap, var, **cut)
    urls = [f"http://127.0.0.1:{port + n}" for n in range(2)]
    started = {}
    with ExitStack() as running:
        for url in urls:
            process = start("tests.integration.post_worker", environment, var / f"{url[-5:]}.log")
            running.callback(end, process)
            started[process.pid] = process
        eventually(lambda: all(owned_lanes(url) == 2 for url in urls), f"lanes shared; logs are in {var}")
        asyncio.run(produce(kafka.bootstrap))
        eventually(lambda: rows(urls) == len(KEYS), f"a row for each message; logs are in {var}")
        # Whichever took its slot first has the first address.
        yield {url: started[pid_at(var, slot)] for slot, url in enumerate(urls)}


def pid_at(var: Path, slot: int) -> int:
    return int((var / "workers" / "web" / f"slot-{slot}" / "lock").read_text())


@pytest.fixture(scope="module")
def urls(workers) -> list[str]:
    return list(workers)


def owned_lanes(url: str) -> int:
    if ask(f"{url}/health/ready")[0] != 200:
        return 0
    return [lane["state"] for lane in ask_json(f"{url}/api/worker")["lanes"]].count("open")


def rows(urls: list[str]) -> int:
    return min(len(ask_json(f"{url}/api/tables/parcels?limit=500")["rows"]) for url in urls)


async def produce(bootstrap: str, keys: Sequence[str] = KEYS, *, ident: str = "") -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for key in keys:
            headers = new_headers(TOPIC, key, source="test", time=time.time(), message_id=ident or key)
            value = json.dumps({"parcel": key}).encode()
            await producer.send_and_wait(TOPIC, value, key=key.encode(), headers=headers)


def test_every_key_is_found_on_either_worker(urls):
    owners = set()
    for key in KEYS:
        first, second = (ask_json(f"{url}/api/tables/parcels/rows?key={key}") for url in urls)
        assert first == second
        assert first["rows"][0]["value"] == {"seen": 1}
        owners.add(first["owner"])
    assert owners == set(urls)


def test_the_overview_has_both_workers_whichever_is_asked(urls):
    for url in urls:
        answer = ask_json(f"{url}/api/overview")
        assert [each["url"] for each in answer["workers"]] == urls
        assert sorted(lane["lane"] for each in answer["workers"] for lane in each["lanes"]) == [0, 1, 2, 3]
        assert all(not each["silent"] for each in answer["workers"])
        assert (answer["homeless"], answer["lag"]) == ([], 0)
        (topic,) = [each for each in answer["topics"] if each["topic"] == TOPIC]
        assert topic["takers"]
        status, kind, page = ask(url)
        assert (status, kind) == (200, "text/html")
        for other in urls:
            assert f'href="/workers/{other.partition("://")[2]}"' in page
            assert ask(f"{url}/workers/{other.partition('://')[2]}")[0] == 200


def test_the_overview_is_told_live_by_a_worker(urls):
    with urlopen(f"{urls[0]}/live/overview", timeout=BOUND) as events:
        assert events.headers.get_content_type() == "text/event-stream"
        told = (line for line in events if line.startswith(b"event: state"))
        assert len(list(islice(told, 2))) == 2  # the first, and one a second later


def test_the_lanes_own_tables_can_be_read(urls):
    tables = [table["name"] for table in ask_json(f"{urls[0]}/api/tables")["tables"]]
    (inbox,) = [name for name in tables if name.startswith("_inbox-")]
    ids, positions = (ask_json(f"{urls[0]}/api/tables/{name}")["rows"] for name in (inbox, "_positions"))
    assert sorted(row["key"] for row in ids) == sorted(KEYS)
    assert sum(row["value"]["offset"] for row in positions) == len(KEYS)


def told(url: str) -> list[Metric]:
    status, _, scrape = ask(f"{url}/metrics")
    assert status == 200, scrape
    return list(text_string_to_metric_families(scrape))


def sampled(families: list[Metric], name: str) -> list[float]:
    return [sample.value for family in families for sample in family.samples if sample.name == name]


def test_a_worker_tells_the_documented_metrics(urls):
    page = (ROOT / "docs" / "telemetry.md").read_text()
    explained = set(re.findall(r"^\| `(steadfaust_\w+)`", page, re.MULTILINE))
    without_store = {name for name in explained if not name.startswith("steadfaust_claim_")}
    for url in urls:
        families = told(url)
        names = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
        assert {name for name in names if name.startswith("steadfaust_")} == without_store
        assert sampled(families, "process_resident_memory_bytes")[0] > 1_000_000


def test_the_metrics_of_both_workers_say_what_they_have_done(urls):
    families = [family for url in urls for family in told(url)]
    assert sum(sampled(families, "steadfaust_lane_messages_total")) == len(KEYS)
    assert sum(sampled(families, "steadfaust_handler_duration_seconds_count")) == len(KEYS)
    assert sum(sampled(families, "steadfaust_lane_batch_messages_sum")) == len(KEYS)
    assert sampled(families, "steadfaust_lane_lag_messages") == [0] * 4
    assert all(size > 0 for size in sampled(families, "steadfaust_lane_store_bytes"))
    assert sampled(families, "steadfaust_worker_ready") == [1, 1]


@pytest.mark.parametrize("path", ["/table", "/table/", "/graph/", "/router/", "/stats/", "/performance/"])
def test_fausts_own_pages_are_gone(urls, path):
    assert ask(urls[0] + path)[0] == 404


def test_nobody_listens_but_on_the_loopback_address(urls):
    port = int(urls[0].rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it asks which of our addresses would be used
        except OSError:
            pytest.skip("this machine has no address but loopback")
        own = probe.getsockname()[0]
    with socket.socket() as outside:
        assert outside.connect_ex((own, port)) != 0


# -- what happened to a key -------------------------------------------------------------------------------


def search(url: str, **query: str):
    return ask_json(f"{url}/api/search?{urlencode(query)}")


def trace(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return steadfaust("trace", *words, "--worker", url)


def test_a_key_that_waits_for_a_retry_says_why(kafka, urls):
    asyncio.run(produce(kafka.bootstrap, ["late-one"]))
    eventually(lambda: search(urls[0], q="late-one")["held"]["waiting"], "it waits for a retry")
    for url in urls:
        found = search(url, q="late-one")
        assert [(each["kind"], each["cause"]) for each in found["entries"][:2]] == [
            ("event", 0),
            ("retry", 1),
        ]
        assert found["entries"][1]["failure"]["error-message"] == "the register does not answer"
        (waiting,) = found["held"]["waiting"]
        assert (waiting["handler"], waiting["id"]) == ("post.note", "late-one")
        _, _, page = ask(f"{url}/search?q=late-one")
        assert "waits for post.note</b>, until " in page
        assert "the register does not answer" in page


def test_a_dead_letter_says_what_has_failed(kafka, urls):
    asyncio.run(produce(kafka.bootstrap, ["lost-one"]))
    eventually(lambda: search(urls[0], q="lost-one")["held"]["letters"], "a dead letter")
    for url in urls:
        _, _, page = ask(f"{url}/search?q=lost-one")
        assert "there is no &lt;b&gt;lost-one&lt;/b&gt;" in page
        assert "<b>lost-one" not in page
        entries = search(url, q="lost-one")["entries"]
        assert [(each["kind"], each["handlers"]) for each in entries] == [
            ("event", ["post.note"]),
            ("dead letter", ["post.note"]),
        ]


def test_topics_are_listed_and_read(kafka, urls):
    """After the dead letter: its record, and what led to it, are there to be read."""
    for url in urls:
        topics = {each["name"]: each for each in ask_json(f"{url}/api/topics")["topics"]}
        assert all(each["exists"] for each in topics.values())
        assert (topics[TOPIC]["partitions"], topics[TOPIC]["kind"]) == (4, "messages")
        assert topics[TOPIC]["offsets"] >= len(KEYS)
        assert topics[f"{TOPIC}.dlq"]["offsets"] >= 1
        _, _, page = ask(f"{url}/topics/{TOPIC}?limit=100")
        assert all(f"/search?q={key}" in page for key in KEYS)
        (record,) = ask_json(f"{url}/api/topics/{TOPIC}?key={KEYS[3]}")["records"]
        assert record["value"] == {"parcel": KEYS[3]}
        place = f"/topics/{TOPIC}/{record['partition']}/{record['offset']}"
        assert ask_json(f"{url}/api{place}")["record"]["headers"]
        assert ask(f"{url}{place}")[0] == 200
        (letter,) = ask_json(f"{url}/api/topics/{TOPIC}.dlq?key=lost-one")["records"]
        assert letter["type"]
        (row,) = ask_json(f"{url}/api/topics/web-parcels-changelog?key={KEYS[3]}")["records"]
        assert (row["key"], row["unreadable"]) == (KEYS[3], "")


def test_a_message_id_is_found_wherever_its_key_is(kafka, urls):
    asyncio.run(produce(kafka.bootstrap, ["late-two"]))  # its id is its key: the retry has that, too
    found = trace(urls[0], "late-two", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["entries"][0]["id"] == "late-two"
    nothing = trace(urls[1], "nobody", "--since", "2h")
    assert (nothing.returncode, nothing.stdout) == (3, "")
    assert "use --since 6h to look further back" in nothing.stderr
    assert trace(urls[0], "nobody", "--since", "yesterday").returncode == 1


def test_tables_are_listed_with_the_sizes_of_all_lanes(urls):
    for url in urls:
        found = ask_json(f"{url}/api/tables")
        assert found["left_out"] == {}
        (parcels,) = (table for table in found["tables"] if table["name"] == "parcels")
        assert [part["lane"] for part in parcels["parts"]] == [0, 1, 2, 3]
        assert {part["owner"] for part in parcels["parts"]} == set(urls)
        assert all(set(part["standbys"]) == {*urls} - {part["owner"]} for part in parcels["parts"])
        assert sum(part["rows"] for part in parcels["parts"]) >= len(KEYS)


def test_the_timeline_has_what_each_message_changed_in_the_rows(kafka, urls):
    for number in (1, 2):
        asyncio.run(produce(kafka.bootstrap, ["counted"], ident=f"counted-{number}"))
        eventually(lambda n=number: len(search(urls[0], q="counted")["changes"]) == n, "its row has changed")
    for url in urls:
        found = search(url, q="counted")
        assert [each["id"] for each in found["entries"]] == ["counted-1", "counted-2"]
        assert [(each["step"], each["before"], each["after"]) for each in found["changes"]] == [
            (1, None, {"seen": 1}),
            (2, {"seen": 1}, {"seen": 2}),
        ]
        history = ask_json(f"{url}/api/tables/parcels/history?key=counted")
        assert [each["after"] for each in history["versions"]] == [{"seen": 2}, {"seen": 1}]
        assert history["whole"]
        last = found["changes"][-1]
        _, _, page = ask(f"{url}/topics/{last['topic']}/{last['partition']}/{last['offset']}")
        assert "counted" in page


@pytest.mark.promise("patient-requests", "real workers")
def test_what_a_killed_worker_owned_is_waited_for(workers, urls):
    """From here on one worker is left."""
    alive, dead = urls
    key = next(key for key in KEYS if ask_json(f"{alive}/api/tables/parcels/rows?key={key}")["owner"] == dead)
    workers[dead].kill()
    workers[dead].wait()
    told = [str(BIN / "steadfaust"), "handler", "list", "--worker", alive]
    command = subprocess.Popen(told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, _, page = ask(f"{alive}/tables/parcels/rows?key={key}")
    assert f"is shown from the standby on {alive}" in page
    assert "&#34;seen&#34;: 1" in page

    def answered() -> bool:
        answer = ask_json(f"{alive}/api/tables/parcels/rows?key={key}")
        return answer.get("owner") == alive and answer["rows"][0]["value"] == {"seen": 1}

    eventually(answered, "the lane is open again, at the worker that is left")
    _, said = command.communicate(timeout=BOUND)
    assert command.returncode == 0, said
    assert f"the owner, {dead}," in said.partition("waiting: lane")[2]
    assert "has not answered" not in said


@pytest.mark.promise("same-name")
def test_another_application_of_the_same_name_is_refused(workers, urls, kafka, tmp_path):
    environment = environment_of("web", kafka.bootstrap, tmp_path, PARTITIONS=4, LANES=4)
    environment["POST_TOPIC"] = "web.letter.seen.v1"
    log = tmp_path / "worker.log"
    stranger = start("tests.integration.post_worker", environment, log)
    try:
        assert stranger.wait(BOUND) == 1, log.read_text()
    finally:
        stranger.kill()
    assert re.search(rf"consume [^:]*{TOPIC}: these are two applications", log.read_text())
    assert "Give one of them another STEADFAUST_APP_ID" in log.read_text()
    assert workers[urls[0]].poll() is None
    eventually(lambda: owned_lanes(urls[0]) == 4, "the worker that was there keeps the lanes")


@pytest.mark.promise("same-identity")
def test_of_two_workers_of_one_identity_one_stops(kafka, tmp_path):
    workers, quick = {}, {"HEARTBEAT": 0.2, "SESSION_TIMEOUT": 6}
    try:
        for name in ("one", "other"):
            var = tmp_path / name
            place = var / "workers" / "twins" / "place"
            place.parent.mkdir(parents=True)
            place.write_text("0123456789abcdef")
            told = environment_of("twins", kafka.bootstrap, var, PARTITIONS=4, **quick)
            workers[name] = start("tests.integration.post_worker", told, var / "worker.log")
            eventually(lambda told=told: address_of(told), "it is ready, until its place is taken")
        eventually(lambda: any(worker.poll() is not None for worker in workers.values()), "one of them stops")
        (stopped,) = [name for name, worker in workers.items() if worker.poll() is not None]
        (left,) = workers.keys() - {stopped}
        assert workers[stopped].poll() == 1
        said = (tmp_path / stopped / "worker.log").read_text()
        # The third time it was no member; or the broker has told it while it was joining.
        assert said.count('"event": "membership_taken"') == 3 or "FencedInstanceId" in said
        assert f"{tmp_path / stopped}/workers/twins is a copy of its directory" in said
        assert not (tmp_path / stopped / "workers/twins/place").exists(), "it gets an identity of its own"
        told = environment_of("twins", kafka.bootstrap, tmp_path / left)
        eventually(lambda: (url := address_of(told)) and owned_lanes(url) == 2, "the other has the lanes")
        assert workers[left].poll() is None
    finally:
        for worker in workers.values():
            end(worker)
