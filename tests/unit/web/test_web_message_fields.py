"""A dead letter's message as a form."""

import pytest

from agents.messages import StockReserved
from streams.web.letters.message_fields import MOST_CHARACTERS, PREFIX, fields_of, skeleton, with_fields

VALUE = {"order": {"id": "o-1", "lines": [{"units": 2, "price": 1.5}], "gift": True, "note": None}}


def test_each_field_keeps_its_kind():
    found = [(each.name, each.text, each.kind) for each in fields_of(VALUE, None)]
    assert found == [
        ("order.id", "o-1", "string"),
        ("order.lines[0].units", "2", "integer"),
        ("order.lines[0].price", "1.5", "number"),
        ("order.gift", "true", "boolean"),
    ]
    given = {"order.id": "7", "order.lines[0].units": " 3", "order.gift": "false"}
    changed = with_fields(VALUE, {PREFIX + name: text for name, text in given.items()})
    assert changed == {
        "order": {"id": "7", "lines": [{"units": 3, "price": 1.5}], "gift": False, "note": None}
    }


@pytest.mark.parametrize("text", ["", "two", "1.5", "true", '"2"'])
def test_a_text_of_another_kind_is_refused(text):
    with pytest.raises(ValueError, match=r"lines\[0\].units"):
        with_fields(VALUE, {f"{PREFIX}order.lines[0].units": text})


def test_what_no_input_can_hold_is_edited_as_json():
    assert fields_of({"note": "two\nlines"}, None) == []
    assert fields_of({"note": "x" * (MOST_CHARACTERS + 1)}, None) == []


def test_a_skeleton_has_all_fields_of_the_class():
    empty = skeleton(StockReserved)
    assert empty["order"]["order_id"] == ""
    assert empty["order"]["total_cents"] == 0
    assert "order.total_cents" in [each.name for each in fields_of(empty, StockReserved)]
    assert skeleton(None) is None
    about = {each.name: each.about for each in fields_of(empty, StockReserved)}
    assert about["order.total_cents"] == "the price of all of it in cents; 0 when it costs nothing."
