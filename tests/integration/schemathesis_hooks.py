"""What schemathesis is told of the orders API: `SCHEMATHESIS_HOOKS` names this module."""

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """JSON Schema takes 2.0 for an integer; the API asks for 2."""
    return whole(body)


def whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    return [whole(each) for each in value] if isinstance(value, list) else value
