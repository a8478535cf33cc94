from typing import Any

import pytest
from shop import does_nothing, no_row, order

from agents.inventory import handlers as inventory
from agents.inventory.model import AT_ONCE
from agents.messages import (
    HandleLines,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    ReleaseLine,
    ReserveLine,
    ShipLine,
    ShipmentFailed,
    ShipmentScheduled,
    StockReceived,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from tables.reservations import LineStatus, Reservation, ReservationLine, Tally, TallyStatus
from tables.stock import Hold, StockContradiction, StockLevel
from tables.ways import OrderWay

pytestmark = pytest.mark.promise("wide-orders", "orders of two SKUs and more in several turns")

case = pytest.param
FRUIT = order("o-1", ("apple", 2), ("pear", 1), ("apple", 3))
APPLES = {"order_id": "o-1", "sku": "apple", "units": 5}
PEARS = {"order_id": "o-1", "sku": "pear", "units": 1}
WHOLE = Reservation(order=FRUIT)
DECLINED = PaymentFailed(order=FRUIT, reason="card_declined")
OUT_OF_STOCK = StockReservationFailed(order=FRUIT, reason="out_of_stock")
SKUS = 10_000
WIDE = order("o-1", *((f"sku-{number}", 1) for number in range(SKUS)))


def tally(status: TallyStatus, awaited: int = 0, refused: int = 0) -> Tally:
    """FRUIT's, of two SKUs."""
    return Tally(status=status, skus=2, awaited=awaited, refused=refused)


def had(**answers: LineStatus) -> Any:
    return {sku: ReservationLine(status=status) for sku, status in answers.items()}.get


def never(subkey: str) -> Any:
    raise AssertionError(f"row {subkey!r} was read")


def whole(_: str) -> Reservation:
    return WHOLE


def stock(on_hand: int, reserved: int = 0, shipped: int = 0) -> StockLevel:
    return StockLevel(
        received=on_hand + reserved + shipped, on_hand=on_hand, reserved=reserved, shipped=shipped
    )


def hold(status: str) -> Hold:
    return Hold(units=5, status=status)


REFUSED = LineRefused(**APPLES, reason="out_of_stock")


class TestSplittingAnOrder:
    @pytest.mark.parametrize("event", [OrderPlaced(order=FRUIT), PaymentCaptured(order=FRUIT, cents=1)])
    def test_each_sku_is_asked_for_once(self, event) -> None:
        outcome = inventory.split_order(event, None, never, no_row)
        assert outcome.send == [ReserveLine(**APPLES), ReserveLine(**PEARS)]
        assert outcome.rows["tally"] == tally("asked", 2)
        assert outcome.rows["reservation"] == {"": WHOLE}

    def test_another_way_or_a_called_off_order_asks_nothing(self) -> None:
        for way in (OrderWay(way="submitted"), OrderWay(cancelled=True)):
            outcome = inventory.split_order(OrderPlaced(order=FRUIT), None, never, {"": way}.get)
            assert does_nothing(outcome)

    def test_the_first_step_writes_down_the_way(self) -> None:
        first = inventory.split_order(OrderPlaced(order=FRUIT), None, never, no_row)
        assert first.rows["way"] == {"": OrderWay(way="placed")}
        second = inventory.split_order(OrderPlaced(order=FRUIT), None, never, first.rows["way"].get)
        assert second.rows["way"] == {}

    def test_an_order_placed_again_asks_for_nothing(self) -> None:
        outcome = inventory.split_order(OrderPlaced(order=FRUIT), tally("asked", 2), never, no_row)
        assert does_nothing(outcome)

    def test_an_order_released_before_its_split_asks_nothing(self) -> None:
        early = inventory.release(DECLINED, None, had(), had())
        assert early.send == [ReleaseLine(**APPLES), ReleaseLine(**PEARS)]
        assert early.rows["reservation"] == {"": WHOLE}
        assert not inventory.split_order(OrderPlaced(order=FRUIT), early.rows["tally"], never, no_row).send


class TestGatheringAnswers:
    def test_nothing_is_decided_while_an_answer_is_missing(self) -> None:
        for answer, status, refused in (
            (LineReserved(**APPLES), "reserved", 0),
            (LineRefused(**APPLES, reason="x"), "refused", 1),
        ):
            outcome = inventory.gather(answer, tally("asked", 2), had(), never)
            assert outcome.rows == {
                "tally": tally("asked", 1, refused),
                "had": {"apple": ReservationLine(status=status)},
            }
            assert not outcome.send

    def test_the_last_line_reserved_makes_the_stock_reserved(self) -> None:
        outcome = inventory.gather(LineReserved(**PEARS), tally("asked", 1), had(apple="reserved"), whole)
        assert outcome.rows["tally"] == tally("reserved")
        assert outcome.send == [StockReserved(order=FRUIT)]

    def test_one_refused_line_fails_the_whole_order(self) -> None:
        refusal = LineRefused(**PEARS, reason="out_of_stock")
        last_is_refused = inventory.gather(refusal, tally("asked", 1), had(apple="reserved"), whole)
        last_is_reserved = inventory.gather(
            LineReserved(**APPLES), tally("asked", 1, refused=1), had(pear="refused"), whole
        )
        for outcome in (last_is_refused, last_is_reserved):
            assert outcome.send == [OUT_OF_STOCK, ReleaseLine(**APPLES)]
            assert outcome.rows["tally"] == tally("refused", awaited=1, refused=1)

    def test_refusing_every_line_gives_nothing_back(self) -> None:
        answer = LineRefused(**PEARS, reason="out_of_stock")
        outcome = inventory.gather(answer, tally("asked", 1, refused=1), had(apple="refused"), whole)
        assert outcome.send == [OUT_OF_STOCK]

    @pytest.mark.parametrize("status", ["reserved", "refused", "released"])
    def test_an_answer_that_comes_again_changes_nothing(self, status: LineStatus) -> None:
        for answer in (LineReserved(**APPLES), LineRefused(**APPLES, reason="out_of_stock")):
            outcome = inventory.gather(answer, tally("asked", 1), had(apple=status), never)
            assert does_nothing(outcome)
            assert outcome.note

    @pytest.mark.parametrize("status", ["reserved", "refused", "releasing", "released", "shipped"])
    def test_an_answer_that_comes_after_all_was_decided_changes_nothing(self, status: TallyStatus) -> None:
        outcome = inventory.gather(LineReserved(**PEARS), tally(status, 1), had(), never)
        assert does_nothing(outcome)

    def test_an_answer_that_nobody_asked_for_changes_nothing(self) -> None:
        assert not inventory.gather(LineReserved(**APPLES), None, had(), never).rows
        assert not inventory.gather_released(LineReleased(**APPLES), None, None, never).rows


class TestReleasing:
    @pytest.mark.parametrize(
        "event", [DECLINED, ShipmentFailed(order=FRUIT, reason="unsupported_destination")]
    )
    def test_every_reserved_or_requested_line_is_given_back(self, event) -> None:
        outcome = inventory.release(event, tally("asked", 1), had(apple="reserved"), whole)
        assert outcome.send == [ReleaseLine(**APPLES), ReleaseLine(**PEARS)]
        assert outcome.rows["tally"] == tally("releasing", 2)

    def test_what_was_refused_is_not_given_back(self) -> None:
        outcome = inventory.release(DECLINED, tally("asked", 1, refused=1), had(apple="refused"), whole)
        assert outcome.send == [ReleaseLine(**PEARS)]
        assert outcome.rows["tally"] == tally("releasing", 1, refused=1)

    @pytest.mark.parametrize("status", ["refused", "releasing", "released", "shipped"])
    def test_what_the_order_does_not_have_is_not_given_back(self, status: TallyStatus) -> None:
        assert does_nothing(inventory.release(DECLINED, tally(status), had(), never))

    def test_the_last_line_given_back_makes_the_stock_released_once(self) -> None:
        first = inventory.gather_released(LineReleased(**APPLES), tally("releasing", 2), None, never)
        assert not first.send
        reserved = ReservationLine(status="reserved")
        last = inventory.gather_released(LineReleased(**PEARS), first.rows["tally"], reserved, whole)
        assert last.send == [StockReleased(order=FRUIT)]
        again = inventory.gather_released(LineReleased(**PEARS), last.rows["tally"], last.rows["had"], never)
        assert not again.send

    @pytest.mark.parametrize("status", ["refused", "released"])
    def test_a_line_not_being_released_is_not_counted(self, status: LineStatus) -> None:
        line = ReservationLine(status=status)
        outcome = inventory.gather_released(LineReleased(**PEARS), tally("refused", 1, 1), line, never)
        assert not outcome.rows


class TestShipping:
    def test_what_is_reserved_is_shipped_once(self) -> None:
        event = ShipmentScheduled(order=FRUIT)
        outcome = inventory.ship(event, tally("reserved"))
        assert outcome.send == [ShipLine(**APPLES), ShipLine(**PEARS)]
        assert not inventory.ship(event, outcome.rows["tally"]).send

    def test_an_order_without_stock_ships_nothing(self) -> None:
        assert not inventory.ship(ShipmentScheduled(order=FRUIT), None).send
        assert not inventory.ship(ShipmentScheduled(order=FRUIT), tally("asked", 1)).send


class TestAWideOrder:
    def handled(self, outcome: Any, action: str, lines: Any = never) -> list[Any]:
        parts = [each for each in outcome.send if isinstance(each, HandleLines)]
        assert len(parts) == SKUS // AT_ONCE
        assert {part.action for part in parts} == {action}
        assert [line.sku for part in parts for line in part.lines] == [line.sku for line in WIDE.lines]
        return [each for part in parts for each in inventory.handle_lines(part, lines).send]

    def test_it_is_split_a_part_at_a_time(self) -> None:
        outcome = inventory.split_order(OrderPlaced(order=WIDE), None, never, no_row)
        commands = [ReserveLine(order_id="o-1", sku=line.sku, units=1) for line in WIDE.lines]
        assert self.handled(outcome, "reserve") == commands

    def test_it_ships_a_part_at_a_time(self) -> None:
        outcome = inventory.ship(ShipmentScheduled(order=WIDE), Tally.of(SKUS).now("reserved"))
        shipped = [ShipLine(order_id="o-1", sku=line.sku, units=1) for line in WIDE.lines]
        assert self.handled(outcome, "ship") == shipped

    def test_it_is_given_back_in_parts_but_for_refusals(self) -> None:
        answers = {line.sku: ReservationLine(status="reserved") for line in WIDE.lines}
        answers["sku-7"] = ReservationLine(status="refused")
        last = LineReserved(order_id="o-1", sku=f"sku-{SKUS - 1}", units=1)
        del answers[last.sku]
        awaiting = Tally(status="asked", skus=SKUS, awaited=1, refused=1)
        outcome = inventory.gather(last, awaiting, answers.get, lambda _: Reservation(order=WIDE))
        assert outcome.send[0] == StockReservationFailed(order=WIDE, reason="out_of_stock")
        answers.update(outcome.rows["had"])
        released = [line.sku for line in self.handled(outcome, "release", answers.get)]
        assert len(released) == outcome.rows["tally"].awaited == SKUS - 1
        assert "sku-7" not in released


class TestTheStockOfASku:
    def test_what_comes_in_is_on_hand(self) -> None:
        event = StockReceived(sku="apple", units=7)
        assert inventory.receive(event, None).rows == {"stock": stock(7)}
        assert inventory.receive(event, stock(1, 2, 3)).rows == {"stock": stock(8, 2, 3)}

    @pytest.mark.parametrize(
        ("before", "held", "rows", "answer"),
        [
            case(
                stock(5),
                None,
                {"stock": stock(0, 5), "hold": hold("reserved")},
                LineReserved(**APPLES),
                id="pieces on hand are set aside",
            ),
            case(None, None, {"hold": hold("refused")}, REFUSED, id="no stock"),
            case(stock(4), None, {"hold": hold("refused")}, REFUSED, id="too few"),
            case(stock(0, 9), None, {"hold": hold("refused")}, REFUSED, id="set aside for others"),
            case(stock(99, 5), hold("reserved"), {}, LineReserved(**APPLES), id="reserved already"),
            case(stock(99, 5), hold("shipped"), {}, LineReserved(**APPLES), id="shipped already"),
            case(stock(99, 5), hold("refused"), {}, REFUSED, id="refused already"),
            case(
                stock(99, 5),
                hold("released"),
                {},
                LineRefused(**APPLES, reason="released"),
                id="its release has overtaken it",
            ),
        ],
    )
    def test_a_line_is_reserved_or_refused_once(
        self, before: StockLevel | None, held: Hold | None, rows: dict[str, Any], answer: Any
    ) -> None:
        outcome = inventory.reserve_line(ReserveLine(**APPLES), before, held)
        assert (outcome.rows, outcome.send) == (rows, [answer])

    @pytest.mark.parametrize(
        ("held", "rows"),
        [
            case(hold("reserved"), {"stock": stock(6), "hold": hold("released")}, id="it is on hand again"),
            case(hold("released"), {}, id="released already"),
            case(None, {"hold": hold("released")}, id="of nothing it leaves only a mark"),
            case(hold("refused"), {"hold": hold("released")}, id="of a refusal too"),
        ],
    )
    def test_a_line_is_released_once(self, held: Hold | None, rows: dict[str, Any]) -> None:
        outcome = inventory.release_line(ReleaseLine(**APPLES), stock(1, 5), held)
        assert (outcome.rows, outcome.send) == (rows, [LineReleased(**APPLES)])

    def test_reserved_pieces_leave_once(self) -> None:
        command = ShipLine(**APPLES)
        outcome = inventory.ship_line(command, stock(1, 5), hold("reserved"))
        assert outcome.rows == {"stock": stock(1, 0, 5), "hold": hold("shipped")}
        assert not inventory.ship_line(command, stock(1, 0, 5), outcome.rows["hold"]).rows

    @pytest.mark.parametrize("held", [None, hold("refused"), hold("released")])
    def test_what_is_not_reserved_cannot_leave(self, held: Hold | None) -> None:
        with pytest.raises(StockContradiction, match="apple of order o-1 cannot ship"):
            inventory.ship_line(ShipLine(**APPLES), stock(9), held)

    def test_what_has_left_cannot_be_released(self) -> None:
        with pytest.raises(StockContradiction, match="cannot be released: it is shipped"):
            inventory.release_line(ReleaseLine(**APPLES), stock(1, 0, 5), hold("shipped"))

    def test_no_count_goes_below_nothing(self) -> None:
        with pytest.raises(StockContradiction, match="less than nothing"):
            stock(1).reserve(2)
        with pytest.raises(StockContradiction, match="less than nothing"):
            stock(1, 1).ship(2)

    def test_no_count_is_larger_than_a_row_can_have(self) -> None:
        with pytest.raises(StockContradiction, match="more than can be counted"):
            stock(2**63 - 1).receive(1)
