"""How many examples are tried: `make check`, `make test` and `make verify` differ in that."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine

#: Seconds that hypothesis may look for a smaller example. Its own bound is that of a whole test here: the
#: test was ended before it could say what had failed.
SHRINKING = 20

#: What share of the examples that a test asks for each profile tries.
SHARES = {"check": 0.1, "test": 0.5, "verify": 1.0}


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
