"""What strangers call a user, an item and a time is recognised, or left open."""

import pytest

from streamer.event.guess import guess_fields


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {"when": 1700000000, "customer": "ann", "product": 3, "category": "jazz"},
            {"user_id": "customer", "item_id": "product", "timestamp": "when"},
        ),
        (
            {"userId": 7, "event": {"product": {"name": "x", "id": 3}}, "ts": 1.7e9},
            {"user_id": "userId", "item_id": "event.product.id", "timestamp": "ts"},
        ),
        (  # the cells of a CSV are texts
            {"CustomerID": "12", "StockCode": "a1", "InvoiceDate": "2010-12-01 08:26:00", "overall": "4.5"},
            {"user_id": "CustomerID", "item_id": "StockCode", "timestamp": "InvoiceDate", "rating": "overall"},
        ),
        (  # a visitor is nearer to a user than a session is; a date needs no name
            {"session_id": "s", "visitor": "v", "sku": "k", "x": "2024-05-01T10:00:00", "action": "buy"},
            {"user_id": "visitor", "item_id": "sku", "timestamp": "x", "event_type": "action"},
        ),
        (  # what belongs to a product is not its id, and a time of day is no time
            {"user_country": "NL", "product_name": "x", "price": 3.5, "at": "noon", "year": 1999},
            {},
        ),
    ],
)  # fmt: skip
def test_fields_are_recognised_by_name_as_far_as_their_values_fit(record: dict, expected: dict) -> None:
    assert guess_fields([record]).fields == expected


def test_our_own_names_win_and_need_no_option() -> None:
    record = {
        "customer": "bob",
        "user_id": "ann",
        "item_id": 1,
        "item_features": {"genre": "jazz"},
        "timestamp": None,
    }

    guess = guess_fields([record, {"extra": 1}])

    assert guess.fields["user_id"] == "user_id"
    assert guess.renamed == {}
    assert guess.keys == [
        *("customer", "user_id", "item_id", "item_features.genre", "extra"),
    ]


def test_a_key_whose_values_do_not_fit_is_not_taken() -> None:
    records = [
        {"user": {"id": 1}, "item": [1, 2], "product_id": 5, "time": "soon"},
        {"user": {"id": 2}, "item": [3], "product_id": 6, "time": "later"},
    ]

    assert guess_fields(records).fields == {
        "user_id": "user.id",
        "item_id": "product_id",
    }
