"""The schema that references have in common."""

import pytest

from studio.evaluation import metrics, statistics
from studio.evaluation.metrics import EVALUATION_METRICS
from tests.support.answered_rows import answered_pairs

PERSON = '{"name": "Ada", "born": 1815, "tags": ["a"], "at": {"town": "London"}}'
OTHER = '{"name": "Bo", "born": null, "tags": [], "at": {"town": "Rome"}}'


def fits(answer: str, *references: str) -> bool:
    """Whether an answer to the first reference fits the schema of all."""
    rows = answered_pairs([(answer, references[0]), *((one, one) for one in references[1:])])
    metric = EVALUATION_METRICS["json_schema"].over(rows)
    counted = metric.row_statistics(rows[0])
    assert counted is not None
    return bool(counted[0])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (PERSON, True),
        ('{"born": 3.5, "name": "", "tags": ["x", "y"], "at": {"town": "?"}}', True),
        ('{"born": null, "name": "x", "tags": [], "at": {"town": ""}}', True),
        ('{"born": "1815", "name": "x", "tags": [], "at": {"town": ""}}', False),
        ('{"born": true, "name": "x", "tags": [], "at": {"town": ""}}', False),
        ('{"born": 1, "name": "x", "tags": [1], "at": {"town": ""}}', False),
        ('{"born": 1, "name": "x", "tags": [], "at": {}}', False),
        ('{"born": 1, "name": "x", "tags": []}', False),
        ('{"born": 1, "name": "x", "tags": [], "at": {"town": ""}, "more": 1}', False),
        (f"[{PERSON}]", False),
        ("Ada", False),
        ("", False),
    ],
)
def test_keys_and_types_decide(answer: str, expected: bool) -> None:  # noqa: FBT001 -- a case
    assert fits(answer, PERSON, OTHER) is expected


def test_keys_that_vary_may_be_any() -> None:
    assert fits('{"c": 3}', '{"a": 1}', '{"b": 2}')
    assert not fits('{"a": "three"}', '{"a": 1}', '{"b": 2}')


def test_rows_whose_reference_is_no_json_do_not_count() -> None:
    rows = answered_pairs([(PERSON, PERSON), ("yes", "yes"), (OTHER, OTHER)])
    measured = statistics.measure(EVALUATION_METRICS["json_schema"], rows)

    assert measured is not None
    assert (measured.value, measured.n) == (1, 2)


def test_right_values_fit() -> None:
    rows = answered_pairs([(PERSON, PERSON), (OTHER, OTHER)])

    values = {one.key: statistics.value(one, rows) for one in metrics.for_rows(rows)}
    assert (values["json_valid"], values["json_schema"], values["json_equal"]) == (1, 1, 1)
