"""The OpenAPI document of the orders API says what the API takes: pages' examples are held to it."""

import json
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from agents.gateway.cards import Behaviour, behaviour
from tests.orders_shop import CUP, shop_on

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CURL = re.compile(r"^curl (?:\\\n|.)*", re.MULTILINE)
#: What Python's expressions have and those of JSON Schema (ECMA-262) have not.
PYTHONS_OWN = re.compile(r"\\[AZz]|\(\?(?!:|=|!|<=|<!|<[A-Za-z])")


@pytest.fixture
async def document() -> AsyncIterator[dict[str, Any]]:
    async with shop_on("postgresql://none@127.0.0.1:1/none", patience=0.1) as shop:
        yield (await shop.client.get("/docs/openapi.json")).json()


def valid_for(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": document["components"]})


def order_schema(document: dict[str, Any]) -> dict[str, Any]:
    content = document["paths"]["/orders"]["post"]["requestBody"]["content"]
    return dict(content["application/json"]["schema"])


def bodies() -> Iterator[tuple[str, Any]]:
    """What pages send to `/orders` as examples, with the page."""
    for page in PAGES:
        for command in CURL.findall(page.read_text()):
            words = shlex.split(command.replace("\\\n", " "))
            if "-d" in words and any(word.endswith("/orders") for word in words):
                yield page.name, json.loads(words[words.index("-d") + 1])


def schemas_in(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        for each in part.values():
            yield from schemas_in(each)
    elif isinstance(part, list):
        for each in part:
            yield from schemas_in(each)


@pytest.mark.promise("api-any-request")
async def test_each_documented_order_is_valid_by_the_document(document: dict[str, Any]) -> None:
    found = [*bodies(), ("tests", CUP)]
    assert "orders-api.md" in {page for page, _ in found}
    check = valid_for(document, order_schema(document))
    for page, body in found:
        check.validate(body)
        assert page


def test_each_documented_order_has_a_card_that_pays() -> None:
    for page, body in bodies():
        assert behaviour(body["card"]) == Behaviour(), page


@pytest.mark.parametrize(
    "wrong",
    [
        {"lines": []},
        {"lines": [{"sku": "cup"}]},
        {"lines": ["cup"]},
        {"lines": [{"sku": "cup", "units": 0}]},
        {"order_id": "a/b"},
        {"order_id": "a\n"},
        {"order_id": ""},
        {"customer": "a\0"},
        {"colour": "red"},
        {"attachments": [{"name": "a", "content_type": "b", "data": "no base64"}]},
    ],
)
async def test_the_document_refuses_what_the_api_refuses(document: dict[str, Any], wrong: Any) -> None:
    check = valid_for(document, order_schema(document))
    assert check.is_valid(CUP | {"order_id": "o-1", "attachments": []})
    assert not check.is_valid(CUP | wrong)


async def test_each_pattern_is_one_that_json_schema_knows(document: dict[str, Any]) -> None:
    patterns = {each["pattern"] for each in schemas_in(document) if isinstance(each.get("pattern"), str)}
    assert len(patterns) >= 4
    assert not [each for each in patterns if PYTHONS_OWN.search(each)]


async def test_no_schema_allows_anything_by_accident(document: dict[str, Any]) -> None:
    for each in schemas_in(document["components"]):
        assert {} not in each.get("oneOf", []) + each.get("anyOf", [])
    for each in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(each)


async def test_each_error_is_documented_as_a_problem(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                if status >= "4" and path != "/health":
                    assert [*answer["content"]] == ["application/problem+json"], (path, method, status)
