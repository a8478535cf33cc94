import msgspec
import pytest
from shop import order

from agents.inventory import handlers as inventory
from agents.messages import (
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
from tables.reservations import LineStatus, Reservation
from tables.stock import Hold, StockContradiction, StockLevel

FRUIT = order("o-1", ("apple", 2), ("pear", 1), ("apple", 3))
APPLES = {"order_id": "o-1", "sku": "apple", "units": 5}
PEARS = {"order_id": "o-1", "sku": "pear", "units": 1}


def reservation(**statuses: LineStatus) -> Reservation:
    """FRUIT's reservation with its lines in these states."""
    asked = Reservation.of(FRUIT)
    lines = tuple(msgspec.structs.replace(line, status=statuses[line.sku]) for line in asked.lines)
    return msgspec.structs.replace(asked, lines=lines)


def stock(on_hand: int, reserved: int = 0, shipped: int = 0) -> StockLevel:
    return StockLevel(
        received=on_hand + reserved + shipped, on_hand=on_hand, reserved=reserved, shipped=shipped
    )


class TestSplittingAnOrder:
    @pytest.mark.parametrize("event", [OrderPlaced(order=FRUIT), PaymentCaptured(order=FRUIT, cents=1)])
    def test_each_sku_is_asked_for_once_with_the_pieces_of_all_its_lines(self, event) -> None:
        outcome = inventory.split_order(event, None)
        assert outcome.send == [ReserveLine(**APPLES), ReserveLine(**PEARS)]
        assert outcome.rows == {"reservation": reservation(apple="asked", pear="asked")}

    def test_an_order_placed_again_asks_for_nothing(self) -> None:
        outcome = inventory.split_order(OrderPlaced(order=FRUIT), reservation(apple="asked", pear="asked"))
        assert not outcome.rows
        assert not outcome.send

    def test_an_order_without_lines_has_all_of_its_stock_at_once(self) -> None:
        empty = order(lines=())
        assert inventory.split_order(OrderPlaced(order=empty), None).send == [StockReserved(order=empty)]

    def test_an_order_that_was_released_before_it_was_split_asks_for_nothing(self) -> None:
        early = inventory.release(PaymentFailed(order=FRUIT, reason="card_declined"), None)
        assert early.send == [ReleaseLine(**APPLES), ReleaseLine(**PEARS)]
        assert not inventory.split_order(OrderPlaced(order=FRUIT), early.rows["reservation"]).send


class TestGatheringAnswers:
    def test_nothing_is_decided_while_an_answer_is_missing(self) -> None:
        for answer, status in (
            (LineReserved(**APPLES), "reserved"),
            (LineRefused(**APPLES, reason="x"), "refused"),
        ):
            outcome = inventory.gather(answer, reservation(apple="asked", pear="asked"))
            assert outcome.rows == {"reservation": reservation(apple=status, pear="asked")}
            assert not outcome.send

    def test_the_last_line_reserved_makes_the_stock_reserved(self) -> None:
        outcome = inventory.gather(LineReserved(**PEARS), reservation(apple="reserved", pear="asked"))
        assert outcome.rows == {"reservation": reservation(apple="reserved", pear="reserved")}
        assert outcome.send == [StockReserved(order=FRUIT)]

    def test_one_refused_line_fails_the_order_and_gives_back_the_others(self) -> None:
        failed = StockReservationFailed(order=FRUIT, reason="out_of_stock")
        last_is_refused = inventory.gather(
            LineRefused(**PEARS, reason="out_of_stock"), reservation(apple="reserved", pear="asked")
        )
        last_is_reserved = inventory.gather(
            LineReserved(**APPLES), reservation(apple="asked", pear="refused")
        )
        for outcome in (last_is_refused, last_is_reserved):
            assert outcome.send == [failed, ReleaseLine(**APPLES)]
            assert outcome.rows == {"reservation": reservation(apple="releasing", pear="refused")}

    def test_when_every_line_is_refused_there_is_nothing_to_give_back(self) -> None:
        answer = LineRefused(**PEARS, reason="out_of_stock")
        outcome = inventory.gather(answer, reservation(apple="refused", pear="asked"))
        assert outcome.send == [StockReservationFailed(order=FRUIT, reason="out_of_stock")]

    @pytest.mark.parametrize("status", ["reserved", "refused", "releasing", "released", "shipped"])
    def test_an_answer_that_comes_again_changes_nothing(self, status: LineStatus) -> None:
        for answer in (LineReserved(**APPLES), LineRefused(**APPLES, reason="out_of_stock")):
            outcome = inventory.gather(answer, reservation(apple=status, pear="asked"))
            assert not outcome.rows
            assert not outcome.send
            assert outcome.note

    def test_the_last_answer_coming_again_decides_nothing_more(self) -> None:
        settled = reservation(apple="reserved", pear="reserved")
        assert not inventory.gather(LineReserved(**PEARS), settled).send

    def test_an_answer_that_nobody_asked_for_changes_nothing(self) -> None:
        assert not inventory.gather(LineReserved(**APPLES), None).rows
        assert not inventory.gather_released(LineReleased(**APPLES), None).rows


class TestReleasing:
    @pytest.mark.parametrize(
        "event",
        [
            PaymentFailed(order=FRUIT, reason="card_declined"),
            ShipmentFailed(order=FRUIT, reason="unsupported_destination"),
        ],
    )
    def test_every_line_that_is_reserved_or_asked_for_is_given_back(self, event) -> None:
        outcome = inventory.release(event, reservation(apple="reserved", pear="asked"))
        assert outcome.send == [ReleaseLine(**APPLES), ReleaseLine(**PEARS)]
        assert outcome.rows == {"reservation": reservation(apple="releasing", pear="releasing")}

    @pytest.mark.parametrize("status", ["refused", "releasing", "released", "shipped"])
    def test_what_the_order_does_not_have_is_not_given_back(self, status: LineStatus) -> None:
        event = PaymentFailed(order=FRUIT, reason="card_declined")
        before = reservation(apple=status, pear=status)
        outcome = inventory.release(event, before)
        assert not outcome.send
        assert outcome.rows == {"reservation": before}

    def test_the_last_line_given_back_makes_the_stock_released(self) -> None:
        first = inventory.gather_released(
            LineReleased(**APPLES), reservation(apple="releasing", pear="releasing")
        )
        assert not first.send
        last = inventory.gather_released(LineReleased(**PEARS), first.rows["reservation"])
        assert last.send == [StockReleased(order=FRUIT)]
        again = inventory.gather_released(LineReleased(**PEARS), last.rows["reservation"])
        assert not again.send


class TestShipping:
    def test_what_is_reserved_is_shipped_once(self) -> None:
        event = ShipmentScheduled(order=FRUIT)
        outcome = inventory.ship(event, reservation(apple="reserved", pear="reserved"))
        assert outcome.send == [ShipLine(**APPLES), ShipLine(**PEARS)]
        assert not inventory.ship(event, outcome.rows["reservation"]).send

    def test_an_order_without_stock_ships_nothing(self) -> None:
        assert not inventory.ship(ShipmentScheduled(order=FRUIT), None).send


class TestTheStockOfASku:
    def test_what_comes_in_is_on_hand(self) -> None:
        event = StockReceived(sku="apple", units=7)
        assert inventory.receive(event, None).rows == {"stock": stock(7)}
        assert inventory.receive(event, stock(1, 2, 3)).rows == {"stock": stock(8, 2, 3)}

    def test_pieces_on_hand_are_set_aside(self) -> None:
        outcome = inventory.reserve_line(ReserveLine(**APPLES), stock(5), None)
        assert outcome.rows == {"stock": stock(0, 5), "hold": Hold(units=5, status="reserved")}
        assert outcome.send == [LineReserved(**APPLES)]

    @pytest.mark.parametrize("before", [None, stock(4), stock(0, 9)])
    def test_too_few_pieces_are_refused_and_stay_where_they_are(self, before: StockLevel | None) -> None:
        outcome = inventory.reserve_line(ReserveLine(**APPLES), before, None)
        assert outcome.rows == {"hold": Hold(units=5, status="refused")}
        assert outcome.send == [LineRefused(**APPLES, reason="out_of_stock")]

    @pytest.mark.parametrize(
        ("status", "answer"),
        [
            ("reserved", LineReserved(**APPLES)),
            ("shipped", LineReserved(**APPLES)),
            ("refused", LineRefused(**APPLES, reason="out_of_stock")),
            ("released", LineRefused(**APPLES, reason="released")),
        ],
    )
    def test_asked_again_it_answers_by_the_hold_and_changes_nothing(self, status, answer) -> None:
        outcome = inventory.reserve_line(ReserveLine(**APPLES), stock(99, 5), Hold(units=5, status=status))
        assert outcome.send == [answer]
        assert not outcome.rows

    def test_released_pieces_are_on_hand_again(self) -> None:
        outcome = inventory.release_line(ReleaseLine(**APPLES), stock(1, 5), Hold(units=5, status="reserved"))
        assert outcome.rows == {"stock": stock(6), "hold": Hold(units=5, status="released")}
        assert outcome.send == [LineReleased(**APPLES)]

    def test_released_again_it_says_so_and_changes_nothing(self) -> None:
        outcome = inventory.release_line(ReleaseLine(**APPLES), stock(6), Hold(units=5, status="released"))
        assert not outcome.rows
        assert outcome.send == [LineReleased(**APPLES)]

    @pytest.mark.parametrize("before", [None, Hold(units=5, status="refused")])
    def test_a_release_of_what_was_never_set_aside_leaves_a_mark_only(self, before: Hold | None) -> None:
        outcome = inventory.release_line(ReleaseLine(**APPLES), stock(6), before)
        assert outcome.rows == {"hold": Hold(units=5, status="released")}
        assert outcome.send == [LineReleased(**APPLES)]

    def test_a_reserve_that_its_release_has_overtaken_is_refused(self) -> None:
        mark = inventory.release_line(ReleaseLine(**APPLES), stock(6), None).rows["hold"]
        late = inventory.reserve_line(ReserveLine(**APPLES), stock(6), mark)
        assert late.send == [LineRefused(**APPLES, reason="released")]
        assert not late.rows

    def test_reserved_pieces_leave_once(self) -> None:
        command = ShipLine(**APPLES)
        outcome = inventory.ship_line(command, stock(1, 5), Hold(units=5, status="reserved"))
        assert outcome.rows == {"stock": stock(1, 0, 5), "hold": Hold(units=5, status="shipped")}
        assert not inventory.ship_line(command, stock(1, 0, 5), outcome.rows["hold"]).rows

    @pytest.mark.parametrize(
        "hold", [None, Hold(units=5, status="refused"), Hold(units=5, status="released")]
    )
    def test_what_is_not_reserved_cannot_leave(self, hold: Hold | None) -> None:
        with pytest.raises(StockContradiction, match="apple of order o-1 cannot ship"):
            inventory.ship_line(ShipLine(**APPLES), stock(9), hold)

    def test_what_has_left_cannot_be_released(self) -> None:
        with pytest.raises(StockContradiction, match="cannot be released: it is shipped"):
            inventory.release_line(ReleaseLine(**APPLES), stock(1, 0, 5), Hold(units=5, status="shipped"))

    def test_no_count_goes_below_nothing(self) -> None:
        with pytest.raises(StockContradiction, match="less than nothing"):
            stock(1).reserve(2)
        with pytest.raises(StockContradiction, match="less than nothing"):
            stock(1, 1).ship(2)
