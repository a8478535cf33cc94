"""How much is tried, and what runs first: `make check`, `make test` and `make verify` differ in that.

README.md beside this says what runs where, and where the time goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine

#: Seconds that hypothesis may look for a smaller example. Its own bound is that of a whole test here: the
#: test was ended before it could say what had failed.
SHRINKING = 20

#: What share of the examples that a test asks for each profile tries.
SHARES = {"check": 0.1, "test": 1.0, "verify": 1.0}

#: Seconds of the files that take long, on two cores that do nothing else. They are started first, the longest
#: before all: a long one that starts last leaves the other core idle. `--durations` prints them anew.
SECONDS = {
    "scenarios/test_chaos.py": 270,
    "scenarios/test_brokers.py": 200,
    "scenarios/test_demo.py": 200,
    "scenarios/test_faults.py": 180,
    "scenarios/test_chaos_controls.py": 120,
    "scenarios/test_sagas.py": 100,
    "scenarios/test_network.py": 100,
    "scenarios/test_hostile_records.py": 80,
    "browser/test_web_view.py": 75,
    "scenarios/test_worker_errors.py": 70,
    "integration/test_compiled.py": 100,
    "scenarios/test_dead_letter_desk.py": 60,
    "scenarios/test_chaos_check.py": 60,
    "scenarios/test_cut.py": 60,
    "scenarios/test_rolling_deploy.py": 60,
    "lane/test_lane_wide_orders.py": 90,
    "scenarios/test_recovering.py": 50,
    "scenarios/test_wide_orders.py": 50,
    "integration/test_local_stack.py": 70,
    "scenarios/test_broker.py": 45,
    "scenarios/test_orders.py": 40,
    "scenarios/test_unknown_schemas.py": 40,
    "scenarios/test_orders_over_http.py": 30,
    "lane/test_lane_freshness_kafka.py": 40,
    "integration/test_bench.py": 40,
    "integration/test_chaos_network.py": 40,
    "lane/test_lane_retries.py": 40,
    "unit/chaos/test_model_protocol.py": 35,
    "lane/test_lane_retry_properties.py": 30,
    "lane/test_lane_claim_properties.py": 25,
    "lane/test_lane_schema_properties.py": 25,
    "lane/test_lane_pause_properties.py": 20,
    "lane/test_lane_desk_properties.py": 20,
}


def register_profiles() -> None:
    """The same examples each time, but for `verify`: there they are new ones, and a failure prints how to
    repeat it. Machines are shared, so how long an example takes says nothing of the code.
    """
    assert hasattr(engine, "MAX_SHRINKING_SECONDS"), "hypothesis has another bound for shrinking"
    engine.MAX_SHRINKING_SECONDS = SHRINKING
    common = settings(
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining has no bound
    )
    settings.register_profile("check", common, derandomize=True, max_examples=10)
    settings.register_profile("test", common, derandomize=True)
    settings.register_profile("verify", common, derandomize=False, print_blob=True)  # CI would repeat them
    settings.load_profile("test")


def examples(count: int) -> int:
    """How many examples to try where a whole test tries `count`."""
    return max(3, round(count * SHARES[settings.get_current_profile_name()]))


def is_all() -> bool:
    """Whether everything is tried, by chance: `make verify`."""
    return settings.get_current_profile_name() == "verify"


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by what their file takes; those of a file stay together, in their order."""
    items.sort(key=lambda item: -SECONDS.get(file_of(item.nodeid), 0))


def seconds_by_file(reports: Iterable[Any]) -> Sequence[tuple[str, float]]:
    """The files and what they took in all, the longest first."""
    took: Counter[str] = Counter()
    for report in reports:
        took[file_of(report.nodeid)] += report.duration
    return took.most_common()


def file_of(nodeid: str) -> str:
    """The file of a test, below `tests`."""
    return nodeid.partition("::")[0].removeprefix("tests/")
