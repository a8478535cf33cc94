"""Handlers and choreographies are checked when they are made, and say what does not fit."""

from typing import Any

import pytest
from placing import STOCK, Paid, Placed, Stock, pay, service

from streams.errors import WiringError
from streams.model.application import Application
from streams.model.choreography import check_sent, choreography, on
from streams.model.codecs import json_without_schema
from streams.model.layout import Layout
from streams.model.message import Message
from streams.model.outcome import Outcome, nothing
from streams.model.table import RowOf, Table


@service.handler()
def either(message: Placed | Paid, *, envelope: Any, gateway: Any) -> Outcome:
    return nothing(f"{message} {envelope} {gateway}")


def app(*routes: Any, **options: Any) -> Application:
    return Application(Layout("app", 4, 2), choreography(*routes), json_without_schema, **options)


def test_a_handler_stays_a_function_and_knows_what_it_is() -> None:
    assert pay(Placed(k="a"), None).rows == {"stock": Stock(n=1)}
    assert (pay.name, pay.accepts, pay.sends, pay.is_async) == ("svc.pay", (Placed,), (Paid,), False)
    assert pay.rows == {"stock": RowOf(STOCK)}
    assert pay.__doc__ == "Take the money."
    assert repr(pay) == "<handler svc.pay>"
    assert either.accepts == (Placed, Paid)
    assert either.resources == ("gateway",)
    assert either.wants_envelope


def test_a_handler_must_name_its_rows_as_they_are_declared() -> None:
    with pytest.raises(
        WiringError, match=r"svc.wrong takes the rows \['stok'\], but is declared with \['stock'\]"
    ):

        @service.handler(stock=STOCK)
        def wrong(order: Placed, stok: Stock | None) -> Outcome:
            return nothing(f"{order}{stok}")


def test_a_handler_must_say_which_message_it_takes() -> None:
    with pytest.raises(WiringError, match="annotate its first parameter"):

        @service.handler()
        def vague(order: Any) -> Outcome:
            return nothing(f"{order}")

    with pytest.raises(WiringError, match="annotate its first parameter"):

        @service.handler()
        def none() -> Outcome:
            return nothing("")


def test_a_line_of_the_wiring_must_fit() -> None:
    with pytest.raises(WiringError, match=r"on\(Paid, svc.pay\): svc.pay takes Placed"):
        choreography(on(Paid, pay))
    with pytest.raises(WiringError, match=r"on\(Placed\) names no handler"):
        choreography(on(Placed))
    with pytest.raises(WiringError, match=r"on\(Placed\) names a handler twice"):
        choreography(on(Placed, pay, pay))
    with pytest.raises(WiringError, match="two lines"):
        choreography(on(Placed, pay), on(Placed, either))
    with pytest.raises(WiringError, match=r"on\(Placed, <function app.*no handler: declare it with @service"):
        choreography(on(Placed, app))  # type: ignore[arg-type]


def test_a_message_has_its_own_topic_and_a_key() -> None:
    twin = type("Twin", (Placed,), {}, frozen=True)
    for topic in (None, "", "two words", "x" * 250):
        fields = {} if topic is None else {"TOPIC": topic}
        bad = type("Bad", (Message,), fields | {"key": "k"}, frozen=True)
        with pytest.raises(WiringError, match=r"Bad has the TOPIC .*: give 1 to 249 letters"):
            choreography(on(bad, pay))
    bare = type("Bare", (Message,), {"TOPIC": "bare"}, frozen=True)
    with pytest.raises(WiringError, match="Bare has no key: give it a property `key`"):
        check_sent(bare)
    with pytest.raises(NotImplementedError, match="Bare has no key"):
        _ = bare().key

    @service.handler()
    def take(message: twin) -> Outcome:  # type: ignore[valid-type]
        return nothing(f"{message}")

    with pytest.raises(WiringError, match=r"Placed and Twin have the topic orders\.placed\.v1"):
        choreography(on(Placed, pay), on(twin, take))


def test_a_tables_name_is_its_own() -> None:
    @service.handler(stock=Table("stock", Stock))
    def other(order: Placed, stock: Stock | None) -> Outcome:
        return nothing(f"{order}{stock}")

    with pytest.raises(WiringError, match="two tables are named stock"):
        choreography(on(Placed, pay, other)).tables()
    for name in ("inbox", "lane", "_mine"):

        @service.handler(row=Table(name, Stock))
        def own(order: Placed, row: Stock | None) -> Outcome:
            return nothing(f"{order}{row}")

        with pytest.raises(WiringError, match="reserved for the lane"):
            app(on(Placed, own))


def test_the_inbox_covers_what_comes_from_outside() -> None:
    wiring = choreography(on(Placed, pay), on(Paid, either))
    assert wiring.uses_inbox(Placed.TOPIC)
    assert not wiring.uses_inbox(Paid.TOPIC)
    overridden = choreography(on(Placed, pay, inbox=False), on(Paid, either, inbox=True))
    assert not overridden.uses_inbox(Placed.TOPIC)
    assert overridden.uses_inbox(Paid.TOPIC)


def test_a_resource_that_nobody_supplies_is_missed_at_start() -> None:
    with pytest.raises(WiringError, match=r"svc.either needs \['gateway'\].*it has \['mailer'\]"):
        app(on(Placed, either), resources={"mailer": 1})
    bound = app(on(Placed, either), resources={"gateway": 1})
    assert bound.routes[Placed.TOPIC].handlers[0].name == "svc.either"


def test_an_undeclared_row_is_named_in_the_error() -> None:
    handler = app(on(Placed, pay)).routes[Placed.TOPIC].handlers[0]
    with pytest.raises(
        WiringError, match=r"svc.pay returned a row named 'ledger', but is declared with \['stock'\]"
    ):
        handler.table_of("ledger")


def test_an_application_knows_its_topics_tables_and_changelogs() -> None:
    bound = app(on(Placed, pay))
    assert bound.sources == [Placed.TOPIC, f"app-{Placed.TOPIC}-repartition", "app-operations"]
    assert bound.changelogs == {
        "app-stock-changelog": "stock",
        "app-inbox-changelog": "inbox",
        "app-lane-changelog": "lane",
        "app-dead_letters-changelog": "dead_letters",
    }
    assert bound.message_codecs.keys() == {Placed.TOPIC, Paid.TOPIC}
    assert bound.schemas() == {}


def test_a_handler_without_brackets_is_one() -> None:
    @service.handler  # type: ignore[arg-type] # type checkers want the brackets
    def bare(order: Placed) -> Outcome:
        return nothing(f"{order}")

    handler: Any = bare
    assert (handler.name, handler.accepts, handler.rows) == ("svc.bare", (Placed,), {})
    choreography(on(Placed, handler))
    with pytest.raises(WiringError, match="give each row its name"):
        service.handler(STOCK)  # type: ignore[arg-type] # it is the error


def test_two_handlers_of_one_name_are_refused() -> None:
    @service.handler(named="svc.pay", stock=STOCK)
    def settle(order: Paid, stock: Stock | None) -> Outcome:
        return nothing(f"{order}{stock}")

    assert settle.name == "svc.pay"
    with pytest.raises(WiringError, match=r"two handlers are named svc.pay"):
        choreography(on(Placed, pay), on(Paid, settle))
    with pytest.raises(WiringError, match=r"settle is named 'pay': give its former service.function"):
        service.handler(named="pay", stock=STOCK)(settle.function)


@pytest.mark.parametrize("name", ["note", "send", "timers", "cancel"])
def test_a_row_has_no_name_of_an_outcome_s_own(name: str) -> None:
    taken: dict[str, Any] = {name: STOCK}

    def take(event: Placed, row: Stock | None) -> Outcome:
        return nothing(f"{event} {row}")

    with pytest.raises(WiringError, match=rf"svc.take has a row '{name}', and outcome\({name}=...\) is"):
        service.handler(**taken)(take)
