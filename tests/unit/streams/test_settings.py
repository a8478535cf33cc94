"""Slots, settings and topics: what must be right before a worker joins."""

import fcntl
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from placing import Placed, pay
from pydantic import ValidationError

from streams.brokers import Brokers
from streams.engine.life.positions.declared import declare, differences
from streams.errors import SettingsError, SteadfaustError
from streams.host import slots
from streams.host.slots import addresses, take_slot
from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import json_without_schema
from streams.model.layout import Layout
from streams.ports import TopicSpec
from streams.settings import Settings
from streams.testing.blobs import MemoryBlobs
from tests.waiting import BOUND

TAKE_AND_WAIT = """
import sys
from pathlib import Path
from streams.host.slots import take_slot
slot = take_slot(Path(sys.argv[1]))
print(slot.number, slot.directory, flush=True)
sys.stdin.read()
"""


class Other:
    """Another process that holds a slot."""

    def __init__(self, root: Path) -> None:
        call, pipe = [sys.executable, "-c", TAKE_AND_WAIT, str(root)], subprocess.PIPE
        self.process = subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True)
        number, _, directory = self.process.stdout.readline().partition(" ")
        self.number, self.directory = int(number), Path(directory.strip())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    process = Other(tmp_path)
    yield process
    process.end()


def test_each_worker_of_a_machine_takes_the_lowest_free_slot(tmp_path: Path, other: Other) -> None:
    assert other.number == 0
    mine = take_slot(tmp_path)
    assert (mine.number, mine.directory) == (1, tmp_path / "slot-1")
    assert mine.directory != other.directory
    other.end()
    freed = take_slot(tmp_path)
    assert (freed.number, freed.directory) == (0, other.directory)
    freed.release()
    again = take_slot(tmp_path)
    assert again.number == 0
    again.release()
    mine.release()


def test_nobody_sees_a_part_of_an_address(tmp_path: Path) -> None:
    slot = take_slot(tmp_path)
    slot.announce("http://127.0.0.1:1")
    with (slot.directory / "url").open() as before:
        slot.announce("http://127.0.0.1:2")
        assert before.read() == "http://127.0.0.1:1", "another file has taken its place"
    assert (slot.directory / "url").read_text() == "http://127.0.0.1:2"
    slot.release()


def test_a_look_for_workers_pushes_none_off_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_slot(tmp_path).release()
    looking, taken = threading.Event(), threading.Event()
    flock = fcntl.flock

    def slow(file: object, how: int) -> None:
        flock(file, how)
        if how == fcntl.LOCK_SH | fcntl.LOCK_NB:  # the reader has a slot's lock in its hands
            looking.set()
            taken.wait(0.5)

    monkeypatch.setattr(slots.fcntl, "flock", slow)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(addresses, tmp_path)
        assert looking.wait(BOUND)
        mine = take_slot(tmp_path)
        taken.set()
        assert found.result() == []
    assert mine.number == 0
    mine.release()


def test_no_slot_left_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST", 1)
    slot = take_slot(tmp_path)
    with pytest.raises(SteadfaustError, match=r"all 1 slots under .* are taken: stop workers"):
        take_slot(tmp_path)
    slot.release()


# -- settings -----------------------------------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("unset")


def test_defaults_fit_together() -> None:
    settings = Settings()
    assert settings.layout() == Layout("steadfaust", 4, 2)
    lane_options = settings.lane_options()
    assert lane_options.inbox_retention == 15 * 86400
    assert lane_options.max_backlog >= lane_options.max_batch


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"PARTITIONS": 6, "LANES": 3, "BOOTSTRAP": "broker:9092", "APP_ID": "shop", "LINGER": 0.02}
    for name, value in given.items():
        monkeypatch.setenv(f"STEADFAUST_{name}", str(value))
    settings = Settings()
    assert settings.lane_options().linger == 0.02
    assert settings.layout() == Layout("shop", 6, 3)
    assert settings.brokers() == Brokers("broker:9092")


def test_an_application_on_a_cluster_must_have_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADFAUST_BOOTSTRAP", "broker:9092")
    with pytest.raises(SystemExit, match="STEADFAUST_APP_ID is not: set it in every process"):
        Settings.read_or_exit()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 9}, "9 lanes over 4 partitions"),
        ({"inbox_retention_days": 13}, "inbox retention of 13 days is shorter than dead letters"),
        ({"dead_letter_retention_days": 16}, "Raise inbox_retention or lower dead_letter_retention"),
        (
            {"heartbeat": 4, "session_timeout": 10},
            "heartbeat \\(4 s\\) is more than a third of session_timeout",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, float], message: str) -> None:
    settings = Settings(**wrong)
    with pytest.raises(SettingsError, match=message):
        settings.layout(), settings.lane_options()


def test_without_a_setting_the_local_stack_says_the_broker(tmp_path: Path) -> None:
    settings = Settings(var=tmp_path)
    with pytest.raises(SettingsError, match="start one with `steadfaust up`"):
        settings.brokers()
    (tmp_path / "stack.json").write_text("{")
    with pytest.raises(SettingsError, match="no local stack at"):
        settings.brokers()
    (tmp_path / "stack.json").write_text(json.dumps({"bootstrap": "127.0.0.1:1234"}))
    assert settings.brokers() == Brokers("127.0.0.1:1234")


# -- topics -------------------------------------------------------------------------------------------------


def specs(replication: int = 3, claims: ClaimChecks | None = None) -> dict[str, TopicSpec]:
    wiring = choreography(on(Placed, pay))
    app = Application(Layout("app", 6, 2), wiring, json_without_schema, claims=claims)
    return {spec.name: spec for spec in declare(app, replication=replication)}


def test_every_topic_of_an_application_is_declared() -> None:
    assert {name: spec.partitions for name, spec in specs().items()} == {
        "orders.placed.v1": 6, "orders.paid.v1": 6, "orders.placed.v1.retry-1": 1,
        "orders.placed.v1.retry-2": 1, "orders.placed.v1.retry-3": 1, "orders.placed.v1.dlq": 1,
        "app-stock-changelog": 6, "app-inbox-changelog": 6, "app-lane-changelog": 6,
        "app-orders.placed.v1-repartition": 6,
        "app-dead_letters-changelog": 6, "app-operations": 6, "app-operations-log": 1, "app-announcements": 1,
    }  # fmt: skip


def test_delays_of_retries_are_seconds_with_commas() -> None:
    assert Settings(retry_delays="0.5, 2").lane_options().retry.delays == (0.5, 2.0)
    with pytest.raises(SettingsError, match="give seconds, such as 10,60,300"):
        Settings(retry_delays="soon").lane_options()


def test_state_is_compacted_and_what_grows_is_deleted_in_time() -> None:
    declared = specs()
    policies = {name: spec.config["cleanup.policy"] for name, spec in declared.items()}
    compacted = {name for name, policy in policies.items() if policy == "compact"}
    kept = ("stock-changelog", "lane-changelog", "dead_letters-changelog", "announcements")
    assert compacted == {f"app-{name}" for name in kept}
    inbox = int(declared["app-inbox-changelog"].config["retention.ms"]) / 86_400_000
    assert inbox == 15 * 1.5
    assert int(declared["orders.placed.v1.dlq"].config["retention.ms"]) == 14 * 86_400_000


@pytest.mark.promise("retention")
def test_no_bound_in_bytes_cuts_short_what_is_kept() -> None:
    declared = specs()
    assert declared["orders.placed.v1"].config["retention.ms"] == str(7 * 86_400_000)
    pinned = {name for name, spec in declared.items() if spec.config.get("retention.bytes") == "-1"}
    assert {"app-inbox-changelog", "app-operations-log", "orders.placed.v1.dlq"} <= pinned
    cut = {**declared["app-inbox-changelog"].config, "retention.bytes": "1000000"}
    (difference,) = differences(declared["app-inbox-changelog"], partitions=6, replication=3, config=cut)
    assert "retention.bytes=1000000, declared is -1" in difference


@pytest.mark.promise("retention")
@pytest.mark.parametrize("longer", [str(8 * 86_400_000), "-1"])
def test_messages_kept_for_longer_than_their_payloads_are_refused(longer: str) -> None:
    claims = ClaimChecks(MemoryBlobs(), bucket="payloads")
    for checks, refused in ((None, False), (claims, True)):
        spec = specs(claims=checks)["orders.placed.v1"]
        actual = {**spec.config, "retention.ms": longer}
        found = differences(spec, partitions=6, replication=3, config=actual)
        assert [("STEADFAUST_MESSAGE_RETENTION_DAYS" in text) for text in found] == [True] * refused


@pytest.mark.parametrize(("replication", "in_sync"), [(1, "1"), (2, "1"), (3, "2")])
def test_a_commit_survives_the_loss_of_a_replica(replication: int, in_sync: str) -> None:
    for spec in specs(replication).values():
        assert (spec.replication, spec.config["min.insync.replicas"]) == (replication, in_sync)


def test_a_dead_letter_topic_has_room_for_added_headers() -> None:
    declared = specs()
    source = int(declared["orders.placed.v1"].config["max.message.bytes"])
    assert source == 1_000_000
    assert int(declared["orders.placed.v1.dlq"].config["max.message.bytes"]) >= source + 10_000


SPEC = TopicSpec("t", 6, 2, {"cleanup.policy": "delete", "retention.ms": "1000", "max.message.bytes": "500"})


def found(
    spec: TopicSpec = SPEC, partitions: int = 6, replication: int = 2, **config: str | None
) -> list[str]:
    actual = {**spec.config, **{name.replace("_", "."): value for name, value in config.items()}}
    return differences(spec, partitions=partitions, replication=replication, config=actual)


def test_a_topic_that_is_as_declared_or_better_fits() -> None:
    assert found() == []
    assert found(replication=3, retention_ms="2000", max_message_bytes="501") == []
    assert found(retention_ms="-1") == []


def test_topics_from_outside_are_stamped_by_brokers() -> None:
    declared = specs()
    stamped = {name for name, spec in declared.items() if "message.timestamp.type" in spec.config}
    assert stamped == {"orders.placed.v1", "app-operations"}


@pytest.mark.promise("retention")
@pytest.mark.parametrize(
    ("actual", "fits"),
    [
        ({}, True),
        ({"message_timestamp_type": "CreateTime"}, False),
        ({"message_timestamp_type": None}, False),
        ({"message_timestamp_type": "CreateTime", "message_timestamp_before_max_ms": str(2**63 - 1)}, False),
        ({"message_timestamp_type": "CreateTime", "message_timestamp_before_max_ms": "1000"}, False),
        ({"message_timestamp_type": "CreateTime", "message_timestamp_before_max_ms": "999"}, True),
        ({"message_timestamp_type": "CreateTime", "retention_ms": "-1"}, True),
    ],
)
def test_old_stamps_bring_no_message_below_retention(actual: dict[str, str | None], fits: bool) -> None:
    spec = TopicSpec("t", 6, 2, {"retention.ms": "1000", "message.timestamp.type": "LogAppendTime"})
    differing = found(spec, **actual)
    assert fits == (not differing)
    assert all("--add-config message.timestamp.type=LogAppendTime" in each for each in differing)


@pytest.mark.promise("retention")
@pytest.mark.parametrize(
    ("actual", "message"),
    [
        ({"partitions": 4}, "t has 4 partitions, the application was first started with 6"),
        ({"partitions": 12}, "t has 12 partitions"),
        ({"replication": 1}, "t has 1 replicas, declared are 2"),
        ({"cleanup_policy": "compact"}, "t has cleanup.policy=compact, declared is delete"),
        ({"cleanup_policy": "compact,delete"}, "t has cleanup.policy=compact,delete"),
        ({"retention_ms": "999"}, "t has retention.ms=999, declared is 1000"),
        ({"max_message_bytes": "499"}, "t has max.message.bytes=499"),
        ({"max_message_bytes": None}, "t has max.message.bytes=None"),
    ],
)
def test_each_difference_is_said_in_words(actual: dict[str, object], message: str) -> None:
    (difference,) = found(**actual)
    assert message in difference


def test_the_addresses_of_workers_are_those_whose_slots_are_held(tmp_path: Path) -> None:
    first, second, third = (take_slot(tmp_path) for _ in range(3))
    first.announce("http://127.0.0.1:1")
    second.announce("http://127.0.0.1:2")
    assert addresses(tmp_path) == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    first.release()
    assert addresses(tmp_path) == ["http://127.0.0.1:2"]
    assert addresses(tmp_path / "nowhere") == []
    second.release()
    third.release()


def test_patience_with_outages_and_schemas_is_set() -> None:
    assert Settings().lane_options().outage_patience == 3 * 86400
    assert Settings().lane_options().schema_patience == 86400
    assert Settings(outage_patience=0).lane_options().outage_patience == 0
    assert Settings(schema_patience=7).lane_options().schema_patience == 7
    for name in ("outage_patience", "schema_patience"):
        for wrong in (-1, float("inf"), float("nan")):
            with pytest.raises(ValidationError):
                Settings(**{name: wrong})


def test_a_desk_has_its_limits_from_the_settings() -> None:
    lane_options = Settings(max_replays=5, edit_dead_letters=True).lane_options()
    assert (lane_options.max_replays, lane_options.edit_dead_letters) == (5, True)
    assert Settings().lane_options().edit_dead_letters is False
