"""What payments may expect of its gateway: the same of the one in memory and of the real process."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from uuid import uuid4

import aiohttp
import pytest

from agents.gateway.cards import ACCEPTED, CHARGED_BUT_TIMED_OUT, DECLINED, unavailable
from agents.gateway.client import GatewayRetries, HttpGateway
from agents.gateway.errors import GatewayRefused, GatewayUnavailable
from agents.gateway.testing import FakeGateway, GatewayProcess
from tests.waiting import BOUND

PATIENT = GatewayRetries(attempt=1.0, total=30.0, base=0.01, cap=0.05)
IMPATIENT = GatewayRetries(attempt=1.0, total=1.0, base=0.01, cap=0.05)

CRASH = GatewayRetries(attempt=3.0, total=3.0, base=0.01, cap=0.2)


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    with GatewayProcess(tmp_path_factory.mktemp("var")) as process:
        yield process


@pytest.fixture(
    params=["in memory", pytest.param("over http", marks=pytest.mark.slow("a process, and its waits"))]
)
async def gateways(request):
    """Two doors to one gateway: a patient client's, and one that soon gives up."""
    if request.param == "in memory":
        patient, impatient = FakeGateway(attempts=1000), FakeGateway(attempts=3)
        impatient.done, impatient._cards = patient.done, patient._cards
        yield patient, impatient
        return
    url = request.getfixturevalue("process").url
    async with AsyncExitStack() as stack:
        yield (
            await stack.enter_async_context(HttpGateway(url, retries=PATIENT)),
            await stack.enter_async_context(HttpGateway(url, retries=IMPATIENT)),
        )


@pytest.fixture
def gateway(gateways):
    return gateways[0]


@pytest.fixture
def impatient(gateways):
    return gateways[1]


def new(what="capture"):
    return f"{what}:order-{uuid4()}"


async def test_a_good_card_is_charged(gateway):
    operation = new()
    charge = await gateway.charge(operation=operation, cents=1250, card=ACCEPTED)
    assert (charge.operation, charge.status, charge.reason, charge.cents) == (operation, "captured", "", 1250)
    assert charge.charge_id
    assert not charge.declined


@pytest.mark.parametrize(("card", "reason"), [(DECLINED, "card_declined"), ("tok_nobodys", "unknown_card")])
async def test_a_declined_card_is_an_answer_and_the_answer_stays(gateway, card, reason):
    operation = new()
    charge = await gateway.charge(operation=operation, cents=1250, card=card)
    assert charge.declined
    assert charge.reason == reason
    assert await gateway.charge(operation=operation, cents=1250, card=card) == charge


async def test_a_hundred_simultaneous_asks_for_one_operation_are_one_charge(gateway):
    operation = new()
    asks = (gateway.charge(operation=operation, cents=700, card=ACCEPTED) for _ in range(100))
    assert len({charge.charge_id for charge in await asyncio.gather(*asks)}) == 1


@pytest.mark.parametrize(("cents", "card"), [(101, ACCEPTED), (100, DECLINED)])
async def test_an_operation_cannot_change_its_amount_or_card(gateway, cents, card):
    operation = new()
    first = await gateway.charge(operation=operation, cents=100, card=ACCEPTED)
    with pytest.raises(GatewayRefused, match="operation_conflict") as refused:
        await gateway.charge(operation=operation, cents=cents, card=card)
    assert (refused.value.operation, refused.value.status) == (operation, 409)
    assert await gateway.find(operation) == first


@pytest.mark.promise("one-charge")
@pytest.mark.parametrize(
    ("card", "again"),
    [(ACCEPTED, "charge"), (CHARGED_BUT_TIMED_OUT, "charge"), (ACCEPTED, "void")],
    ids=["asked for again", "its answer was lost", "to be voided"],
)
async def test_a_charge_that_was_made_stays_as_it_was_made(gateway, card, again):
    operation = new()
    charge = await gateway.charge(operation=operation, cents=4200, card=card)
    assert charge.status == "captured"
    assert await getattr(gateway, again)(operation=operation, cents=4200, card=card) == charge
    assert await gateway.find(operation) == charge


@pytest.mark.promise("saga-voided-charge")
async def test_a_voided_charge_is_declined_when_it_comes(gateway):
    operation = new()
    void = await gateway.void(operation=operation, cents=700, card=ACCEPTED)
    assert (void.status, void.reason, void.cents) == ("declined", "voided", 700)
    assert await gateway.charge(operation=operation, cents=700, card=ACCEPTED) == void
    assert await gateway.void(operation=operation, cents=700, card=ACCEPTED) == void


async def test_charge_and_void_at_once_are_one_for_everybody(gateway):
    operation = new()
    asks = (
        (gateway.charge if number % 2 else gateway.void)(operation=operation, cents=700, card=ACCEPTED)
        for number in range(50)
    )
    assert len({charge.status for charge in await asyncio.gather(*asks)}) == 1


async def test_another_charge_cannot_be_voided_under_the_same_name(gateway):
    operation = new()
    await gateway.charge(operation=operation, cents=700, card=ACCEPTED)
    with pytest.raises(GatewayRefused, match="operation_conflict"):
        await gateway.void(operation=operation, cents=701, card=ACCEPTED)


MALFORMED = [
    pytest.param("", 700, "4111 1111 1111 1111", id="card"),
    pytest.param("", 700, "", id="no card"),
    pytest.param("", 700, "tok_" + "x" * 61, id="long card"),
    pytest.param("", 700, "tok_" + "x" * 100_000, id="card over the body's limit"),
    pytest.param("", 700, "tok_\u00fc", id="letter"),
    pytest.param("", 10**12 + 1, ACCEPTED, id="cents"),
    pytest.param("", 2**63 - 1, ACCEPTED, id="largest cents"),
    pytest.param("", 0, ACCEPTED, id="no cents"),
    pytest.param("\n", 700, ACCEPTED, id="control character"),
    pytest.param("x" * 200, 700, ACCEPTED, id="long name"),
]


@pytest.mark.promise("malformed-charge", "the sandbox gateway and the one of the tests")
@pytest.mark.parametrize(("odd", "cents", "card"), MALFORMED)
async def test_a_malformed_charge_is_declined_and_can_be_voided(gateway, odd, cents, card):
    operation = new() + odd
    charge = await gateway.charge(operation=operation, cents=cents, card=card)
    assert (charge.operation, charge.status, charge.reason) == (operation, "declined", "invalid_charge")
    assert await gateway.void(operation=operation, cents=cents, card=card) == charge
    assert await gateway.find(operation) is None
    assert await gateway.charge(operation=operation, cents=cents, card=card) == charge


async def test_a_refund_under_a_malformed_name_is_refused(gateway):
    charge = await gateway.charge(operation=new(), cents=10, card=ACCEPTED)
    with pytest.raises(GatewayRefused) as refused:
        await gateway.refund(operation=new("refund") + "x" * 200, charge_operation=charge.operation)
    assert refused.value.status == 422


async def test_an_outage_shorter_than_the_callers_patience_is_not_noticed(gateway):
    charge = await gateway.charge(operation=new(), cents=1, card=unavailable(3))
    assert charge.status == "captured"


async def test_an_outage_longer_than_the_callers_patience_charges_nothing(impatient):
    operation = new()
    with pytest.raises(GatewayUnavailable, match="503") as gave_up:
        await impatient.charge(operation=operation, cents=1, card=unavailable(9999))
    assert gave_up.value.operation == operation
    assert gave_up.value.attempts > 1
    assert await impatient.find(operation) is None


async def test_what_one_caller_gave_up_another_finishes(gateway, impatient):
    operation = new()
    with pytest.raises(GatewayUnavailable):
        await impatient.charge(operation=operation, cents=5, card=unavailable(100))
    charge = await gateway.charge(operation=operation, cents=5, card=unavailable(100))
    assert await gateway.find(operation) == charge


async def test_nothing_is_found_under_an_unknown_operation(gateway):
    assert await gateway.find(new()) is None


@pytest.mark.parametrize("odd", ["order/17", "50% off", "Größe 7?x=1#y", "a+b&c", "%2F", "x/../y", "'; --"])
async def test_any_printable_operation_is_found_again(gateway, odd):
    operation = new() + odd
    charge = await gateway.charge(operation=operation, cents=3, card=ACCEPTED)
    assert await gateway.find(operation) == charge


async def test_a_refund_gives_back_the_whole_charge(gateway):
    charge = await gateway.charge(operation=new(), cents=880, card=ACCEPTED)
    operation = new("refund")
    refund = await gateway.refund(operation=operation, charge_operation=charge.operation)
    assert (refund.operation, refund.status, refund.cents) == (operation, "refunded", 880)
    assert refund.charge_operation == charge.operation
    assert await gateway.find(operation) == refund


async def test_a_repeated_refund_answers_what_was_done_before(gateway):
    charge = await gateway.charge(operation=new(), cents=880, card=ACCEPTED)
    operation = new("refund")
    asks = [gateway.refund(operation=operation, charge_operation=charge.operation) for _ in range(20)]
    assert len({refund.refund_id for refund in await asyncio.gather(*asks)}) == 1


async def test_a_charge_is_given_back_once(gateway):
    charge = await gateway.charge(operation=new(), cents=880, card=ACCEPTED)
    asks = [gateway.refund(operation=new("refund"), charge_operation=charge.operation) for _ in range(10)]
    answers = await asyncio.gather(*asks, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, GatewayRefused)]
    assert len(refused) == 9
    assert all(answer.status == 409 and "already_refunded" in answer.body for answer in refused)


async def test_a_charge_that_was_never_made_cannot_be_given_back(gateway):
    with pytest.raises(GatewayRefused, match="unknown_charge") as refused:
        await gateway.refund(operation=new("refund"), charge_operation=new())
    assert refused.value.status == 404


async def test_one_operation_is_not_both_a_charge_and_a_refund(gateway):
    charge = await gateway.charge(operation=new(), cents=10, card=ACCEPTED)
    with pytest.raises(GatewayRefused, match="operation_conflict"):
        await gateway.refund(operation=charge.operation, charge_operation=charge.operation)
    refund = await gateway.refund(operation=new("refund"), charge_operation=charge.operation)
    with pytest.raises(GatewayRefused, match="operation_conflict"):
        await gateway.charge(operation=refund.operation, cents=10, card=ACCEPTED)


# What only a process can show.


async def found(gateway, operation):
    """What is done under `operation`, once something is."""
    while (done := await gateway.find(operation)) is None:
        pass
    return done


async def ledger_of(url):
    async with aiohttp.ClientSession() as session, session.get(f"{url}/ledger?limit=10000") as response:
        assert response.status == 200
        return json.loads(await response.read())


@pytest.mark.promise("one-charge")
@pytest.mark.slow("a process that is killed")
async def test_a_killed_gateway_loses_and_repeats_no_answered_charge(tmp_path):
    operations = [f"capture:order-{number}" for number in range(400)]
    answered = {}
    process = GatewayProcess(tmp_path)

    async def charge(gateway, operation):
        done = await gateway.charge(operation=operation, cents=100, card=ACCEPTED)
        answered[operation] = done
        if len(answered) == 50:
            process.kill()

    async with HttpGateway(process.url, retries=CRASH, connections=32) as gateway:
        results = await asyncio.gather(*(charge(gateway, o) for o in operations), return_exceptions=True)
    assert 50 <= len(answered) < 400
    assert all(r is None or isinstance(r, GatewayUnavailable) for r in results)

    with GatewayProcess(tmp_path) as process_again:
        async with HttpGateway(process_again.url, retries=PATIENT) as gateway:
            for operation, charge_before in answered.items():
                assert await gateway.find(operation) == charge_before
            asks = (gateway.charge(operation=o, cents=100, card=ACCEPTED) for o in operations)
            assert [done.operation for done in await asyncio.gather(*asks)] == operations
        ledger = await ledger_of(process_again.url)
    assert ledger["totals"]["captured"] == 400
    assert ledger["totals"]["captured_cents"] == 40_000
    assert {row["operation"] for row in ledger["rows"]} == set(operations)


async def test_a_charge_whose_answer_is_outstanding_survives_a_kill(tmp_path):
    process = GatewayProcess(tmp_path)
    async with HttpGateway(process.url, retries=GatewayRetries(attempt=30, total=30, base=0.01)) as gateway:
        waiting = asyncio.create_task(gateway.charge(operation="a", cents=7, card=CHARGED_BUT_TIMED_OUT))
        charge = await found(gateway, "a")
        assert not waiting.done()
        process.kill()
        waiting.cancel()
        await asyncio.wait([waiting])
    with GatewayProcess(tmp_path) as again:
        async with HttpGateway(again.url, retries=PATIENT) as gateway:
            assert await gateway.charge(operation="a", cents=7, card=CHARGED_BUT_TIMED_OUT) == charge
        assert (await ledger_of(again.url))["totals"]["captured"] == 1


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_gateway_in_order(tmp_path, signal_name):
    process = GatewayProcess(tmp_path)
    os.kill(process.pid, getattr(signal, signal_name))
    assert process.stop() == 0


def start_in_vain(tmp_path, port):
    env = os.environ | {"PORT": port, "STEADFAUST_VAR": str(tmp_path)}
    command = [sys.executable, "-m", "agents.gateway"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=BOUND, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    return ended.stderr


def test_a_taken_port_is_one_clear_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = start_in_vain(tmp_path, port)
    assert said.startswith(f"gateway: cannot listen on 127.0.0.1:{port}: process {os.getpid()} ")
    assert said.endswith("PORT=0 takes a free one\n")


def test_a_ledger_that_is_no_database_is_one_clear_line(tmp_path):
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "ledger.sqlite").write_text("this is no database, " * 100)
    said = start_in_vain(tmp_path, "0")
    assert said.startswith("gateway: cannot open the ledger ")
    assert said.count("\n") == 1
