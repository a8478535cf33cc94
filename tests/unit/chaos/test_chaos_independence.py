import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

pytestmark = pytest.mark.promise("chaos", "what the checker takes from the library is listed")

PROGRAM = "import sys, chaos.check; print(*sys.modules)"
#: What the checker is made of; nothing of the services' handlers, nor of the driver.
OF_AGENTS = """
    cancellation commands gateway gateway.cards gateway.wire message_bases messages
"""
OF_CHAOS = """
    check evidence evidence.calls evidence.consequences evidence.decoding
    evidence.evidence evidence.in_postgres evidence.letters evidence.objects
    evidence.plain evidence.rebuilt evidence.retry_rows evidence.saga_records
    evidence.stores judges judges.findings judges.key_order judges.lateness judges.noted
    judges.rows judges.saga_ways judges.sagas judges.stalls load load.called_off rig
    rig.records
"""
MODULES = {f"agents.{name}" for name in OF_AGENTS.split()} | {f"chaos.{name}" for name in OF_CHAOS.split()}
#: All that its own modules take from the library: names of errors, a pair of topic and partition, and the
#: reader of topics, whose counts another client's must equal.
OF_THE_LIBRARY = {"streams.errors", "streams.ports", "streams.host.client"}
#: What the demo's check takes beside, of which the checker has the orders, the ledger and the settlements.
OF_THE_DEMO = OF_THE_LIBRARY | {
    "streams.model.claim_checks", "streams.model.claim", "streams.model.codecs", "streams.model.envelope",
    "streams.model.layout", "streams.model.message", "streams.model.row_keys", "streams.saga.state",
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return set(subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).split())


@pytest.mark.stack
def test_the_checker_loads_neither_services_nor_driver(loaded: set[str]) -> None:
    """It must not come to its expectation by asking those whom it judges."""
    assert {name for name in loaded if name.startswith(("agents.", "chaos."))} == MODULES


@pytest.mark.stack
@pytest.mark.parametrize(("package", "allowed"), [("chaos", OF_THE_LIBRARY), ("demo", OF_THE_DEMO)])
def test_no_checker_verifies_library_with_itself(loaded: set[str], package: str, allowed: set[str]) -> None:
    own = [name for name in loaded if name.partition(".")[0] == package]
    assert {module for name in own for module in imported_by(name)} == allowed


def imported_by(name: str) -> Iterator[str]:
    """What a module takes from the library when it runs: for its annotations it may name more."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    for node in _run(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "streams":
                names = [f"streams.{each.name}" for each in node.names]
        else:
            continue
        yield from (each for each in names if each.partition(".")[0] == "streams")


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _run(node)


def test_its_names_are_those_of_the_application() -> None:
    """It states names of its own; a handler or topic that is renamed must not leave it looking at nothing."""
    from agents.commands import OrderSagaTransition
    from agents.order_saga import OrderSaga
    from chaos.evidence import letters, retry_rows
    from chaos.evidence.calls import MESSAGES, NOTES_TOPIC, OUTSIDE_TOPICS
    from chaos.evidence.saga_records import STEPS
    from chaos.judges.findings import HANDLERS
    from chaos.judges.lateness import OF_PARTICIPANTS, TIME
    from chaos.judges.noted import TABLE
    from chaos.load.notes import NOTES, NoteMade, whole, with_notes
    from chaos.rig.kinds import OF_DATABASE, FaultKind
    from chaos.rig.records import OUTSIDE_LANES
    from streams.engine.staging.changes import MESSAGES as MESSAGES_THAT_WAIT
    from streams.model.layout import DEAD_LETTERS, dead_letter_topic, retry_topic

    told_apart = {OrderSagaTransition.TOPIC}
    assert {kind.TOPIC for kind in MESSAGES} == set(whole.messages()) - told_apart
    steps = {each.name: (each.command, each.compensate) for stage in OrderSaga.stages for each in stage}
    assert {each.name: (each.do, each.undo) for each in STEPS} == steps
    assert {each.timeout for stage in OrderSaga.stages for each in stage} == {TIME}
    assert {*FaultKind} >= OF_PARTICIPANTS
    assert OF_DATABASE == OUTSIDE_LANES
    assert {each.table for each in STEPS} <= whole.tables().keys()
    covered = {topic: route for topic, route in with_notes.routes.items() if with_notes.uses_inbox(topic)}
    named = {topic: tuple(handler.name for handler in route.handlers) for topic, route in covered.items()}
    assert named == dict(HANDLERS)
    assert set(named) == OUTSIDE_TOPICS
    assert (NoteMade.TOPIC, NOTES.name) == (NOTES_TOPIC, TABLE)
    assert dead_letter_topic("any") == f"any{letters.SUFFIX}"
    assert retry_topic("any", 2) == f"any{retry_rows.MARK}2"
    assert (DEAD_LETTERS, MESSAGES_THAT_WAIT) == (letters.TABLE, retry_rows.WAITING)


def test_its_own_statements_are_those_of_the_library() -> None:
    from agents.api.service import SOURCE
    from agents.api.wire import OrderView
    from chaos.evidence import decoding, in_postgres, objects
    from chaos.evidence.decoding import partition_of, split_key
    from chaos.judges import sagas
    from streams.engine.staging.changes import TIMERS
    from streams.model import claim, envelope, layout
    from streams.model.row_keys import row_key
    from streams.settings import LOCAL_BUCKET, LOCAL_KEYS
    from tables.orders import ORDERS

    assert (decoding.ID, decoding.SOURCE) == (envelope.ID, envelope.SOURCE)
    assert (decoding.CAUSATION, decoding.TIME) == (envelope.CAUSATION, envelope.TIME)
    assert (decoding.DATAREF, decoding.SHA256, decoding.SIZE) == (claim.DATAREF, claim.SHA256, claim.SIZE)
    assert objects.PREFIX == claim.PREFIX
    assert (objects.BUCKET, objects.KEYS) == (LOCAL_BUCKET, LOCAL_KEYS)
    assert sagas.TIMERS_TABLE == TIMERS
    assert (SOURCE, ORDERS.name) == (in_postgres.SOURCE, in_postgres.TABLE)
    assert "unknown" in get_args(get_type_hints(OrderView)["way"])
    assert split_key(row_key(b"o-1", b"cd-001")) == ("o-1", "cd-001")
    keys = [each.encode() for each in ("", "k", "cdnow-00001", "cd-491", "ä" * 99)]
    assert [partition_of(key, 12) for key in keys] == [layout.partition_of(key, 12) for key in keys]
