"""The smallest handler of README runs as it is printed: here in memory, in tests/integration on Kafka."""

import re

from streams.testing import run_choreography
from tests.readme import smallest_handler

PROGRAM = smallest_handler()


async def test_the_smallest_handler_of_readme_earns_points() -> None:
    found: dict[str, object] = {"__name__": "points"}
    exec(compile(PROGRAM, "README.md", "exec"), found)  # as it is printed
    app, paid, points, row = (found[name] for name in ("app", "OrderPaid", "POINTS", "Points"))
    two = [paid(customer="ada", cents=4900), paid(customer="ada", cents=250)]
    world = await run_choreography(app.wiring, two)
    assert world.row(points, "ada") == row(earned=51)


def test_it_is_short_and_has_one_import_line() -> None:
    written = [line for line in PROGRAM.splitlines() if line.strip()]
    assert len(written) <= 20
    assert [line for line in written if re.match(r"from|import", line)] == written[:1]
