from __future__ import annotations

import subprocess
import sys

PROGRAM = "import sys, chaos.check; print(*(n for n in sys.modules if n.startswith(('agents.', 'chaos.'))))"


def test_the_checker_loads_nothing_of_the_services_nor_of_the_driver() -> None:
    """It must not come to its expectation by asking those whom it judges."""
    loaded = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert set(loaded) == {
        "agents.commands",
        "agents.gateway",
        "agents.gateway.cards",
        "agents.gateway.wire",
        "agents.messages",
        "chaos.calls",
        "chaos.check",
        "chaos.consequences",
        "chaos.evidence",
        "chaos.findings",
        "chaos.lateness",
        "chaos.letters",
        "chaos.noted",
        "chaos.objects",
        "chaos.origins",
        "chaos.payloads",
        "chaos.rebuilt",
        "chaos.records",
        "chaos.retried",
        "chaos.saga_records",
        "chaos.saga_ways",
        "chaos.sagas",
        "chaos.stalls",
        "chaos.stores",
    }


def test_what_it_knows_by_name_is_what_the_application_is_called() -> None:
    """It states names of its own; a handler or topic that is renamed must not leave it looking at nothing."""
    from agents.commands import OrderSagaTransition
    from agents.order_saga import OrderSaga
    from chaos import letters, retried
    from chaos.calls import MESSAGES, NOTES_TOPIC, OUTSIDE_TOPICS
    from chaos.findings import HANDLERS
    from chaos.kinds import Kind
    from chaos.lateness import OF_PARTICIPANTS, TIME
    from chaos.noted import TABLE
    from chaos.notes import NOTES, NoteMade, whole, with_notes
    from chaos.saga_records import STEPS
    from streams.model.layout import DEAD_LETTERS, dead_letter_topic, retry_topic
    from streams.staging.changes import MESSAGES as MESSAGES_THAT_WAIT

    told_apart = {OrderSagaTransition.TOPIC}
    assert {kind.TOPIC for kind in MESSAGES} == set(whole.messages()) - told_apart
    steps = {each.name: (each.command, each.compensate) for stage in OrderSaga.stages for each in stage}
    assert {each.name: (each.do, each.undo) for each in STEPS} == steps
    assert {each.timeout for stage in OrderSaga.stages for each in stage} == {TIME}
    assert {*Kind} >= OF_PARTICIPANTS
    assert {each.table for each in STEPS} <= whole.tables().keys()
    covered = {topic: route for topic, route in with_notes.routes.items() if with_notes.uses_inbox(topic)}
    named = {topic: tuple(handler.name for handler in route.handlers) for topic, route in covered.items()}
    assert named == dict(HANDLERS)
    assert set(named) == OUTSIDE_TOPICS
    assert (NoteMade.TOPIC, NOTES.name) == (NOTES_TOPIC, TABLE)
    assert (dead_letter_topic("any"), retry_topic("any", 2)) == (
        f"any{letters.SUFFIX}",
        f"any{retried.MARK}2",
    )
    assert (DEAD_LETTERS, MESSAGES_THAT_WAIT) == (letters.TABLE, retried.WAITING)
