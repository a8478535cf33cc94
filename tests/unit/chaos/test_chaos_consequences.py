"""Whatever message is lost or doubled, of whatever kind of order, its consequences do not add up."""

from collections.abc import Sequence

import pytest
from good_run import ATTACHED, BOUGHT, good

from agents.messages import HandleLines, ReleaseLine, ReserveLine, ShipLine
from chaos.evidence.consequences import Consequences, SentMessage, consequences
from chaos.judges.sagas import calls
from chaos.rig.records import LARGEST
from demo.purchases import ExpectedOutcome, Purchase, attachments, orchestrated, order, outcome

FILES = {each.order_id for each in BOUGHT if attachments(each, ATTACHED, LARGEST)}
SKUS = {each.order_id: {line.sku for line in each.lines} for each in map(order, BOUGHT)}
GOOD = good()
MESSAGES = GOOD.messages
SAGAS = calls(GOOD.sagas.by_order)
by_either = pytest.mark.parametrize("by_saga", [False, True], ids=["choreographed", "by saga"])


def messages_of(wanted: ExpectedOutcome, *, by_saga: bool) -> list[SentMessage]:
    those = (p for p in BOUGHT if outcome(p) is wanted and orchestrated(p) is by_saga)
    return messages_about(max(those, key=lambda p: len(SKUS[p.order_id])))


def messages_about(purchase: Purchase) -> list[SentMessage]:
    found: list[SentMessage] = []
    ids = {f"placed-{purchase.order_id}"}
    for each in MESSAGES:  # causes come before what they cause
        if each.message_id in ids or each.cause in ids:
            ids.add(each.message_id)
            found.append(each)
    return found


def is_green(messages: Sequence[SentMessage]) -> bool:
    found: Consequences = consequences(messages, SKUS, FILES, SAGAS)
    return not (found.lacking or found.too_many or found.without_cause)


def assert_all_are_needed(messages: Sequence[SentMessage]) -> None:
    assert is_green(messages)
    for lost in messages:
        assert not is_green([each for each in messages if each is not lost]), lost


@by_either
@pytest.mark.parametrize("wanted", ExpectedOutcome)
def test_an_order_is_red_without_any_message(wanted: ExpectedOutcome, by_saga: bool) -> None:
    assert_all_are_needed(messages_of(wanted, by_saga=by_saga))


def in_parts(messages: Sequence[SentMessage]) -> list[SentMessage]:
    """The same of an order that is too wide for one turn: a part of it calls for each command for a SKU."""
    found: list[SentMessage] = []
    for number, each in enumerate(messages):
        if each.topic in (ReserveLine.TOPIC, ReleaseLine.TOPIC, ShipLine.TOPIC):
            part = each._replace(topic=HandleLines.TOPIC, message_id=f"part-{number}", source="inventory")
            found.append(part)
            each = each._replace(cause=part.message_id)
        found.append(each)
    return found


@by_either
@pytest.mark.parametrize("wanted", ExpectedOutcome)
def test_an_order_in_parts_is_red_without_any_message(wanted: ExpectedOutcome, by_saga: bool) -> None:
    assert_all_are_needed(in_parts(messages_of(wanted, by_saga=by_saga)))


def test_so_it_is_with_an_order_that_came_with_files() -> None:
    assert_all_are_needed(messages_about(next(each for each in BOUGHT if each.order_id in FILES)))


@by_either
@pytest.mark.parametrize("wanted", ExpectedOutcome)
def test_an_order_is_red_with_any_message_doubled(wanted: ExpectedOutcome, by_saga: bool) -> None:
    placed, *messages = messages_of(wanted, by_saga=by_saga)
    for doubled in messages:
        again = doubled._replace(message_id="again", offset=9_999)
        assert not is_green([placed, *messages, doubled]), doubled
        assert not is_green([placed, *messages, again]), doubled


@by_either
@pytest.mark.parametrize("wanted", ExpectedOutcome)
def test_in_whatever_order_they_are_read(wanted: ExpectedOutcome, by_saga: bool) -> None:
    messages = messages_of(wanted, by_saga=by_saga)
    assert is_green([*reversed(messages)])
    assert is_green([*messages, messages[0]]), "a client may place an order again"
