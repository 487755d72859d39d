"""The signs of the query language, and what is said of a query that cannot be read."""

import pytest

from studio.services.search.query_filters import QueryError, parse, quote, remove_term


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("support tone", [("", ":", ("support",), False), ("", ":", ("tone",), False)]),
        (
            '"support tone" -draft',
            [("", ":", ("support tone",), False), ("", ":", ("draft",), True)],
        ),
        ("status:running,queued", [("status", ":", ("running", "queued"), False)]),
        ('model:"a b",c', [("model", ":", ("a b", "c"), False)]),
        ("eval_loss<=0.5", [("eval_loss", "<=", ("0.5",), False)]),
        ("-a.b>1e-4", [("a.b", ">", ("1e-4",), True)]),
        ("seed!=3", [("seed", "=", ("3",), True)]),
        ("  ", []),
    ],
)
def test_query_is_parsed_into_terms(
    query: str, read: list[tuple[str, str, tuple[str, ...], bool]]
) -> None:
    assert [(one.field, one.sign, one.values, one.negated) for one in parse(query)] == read


@pytest.mark.parametrize(
    ("query", "message", "place"),
    [
        ('tone "half', "This quotation is not closed.", (5, 10)),
        ("tone status:", "status: needs a value.", (5, 12)),
        ("a " * 31, "A query can have at most 30 terms.", (60, 62)),
    ],
)
def test_unparsable_query_error_gives_position(
    query: str, message: str, place: tuple[int, int]
) -> None:
    with pytest.raises(QueryError) as refused:
        parse(query)

    assert (refused.value.message, (refused.value.start, refused.value.end)) == (message, place)


def test_term_can_be_removed_from_query() -> None:
    query = 'tone  status:failed "two words"'

    assert [remove_term(query, term) for term in parse(query)] == [
        'status:failed "two words"',
        'tone "two words"',
        "tone status:failed",
    ]


@pytest.mark.parametrize("value", ["plain", "two words", "-dash", "a:b", "1e-4", "models/a"])
def test_quoted_value_round_trips(value: str) -> None:
    assert parse(f"model:{quote(value)}")[0].values == (value,)
