"""The JSON schema that references have in common, and whether an answer fits it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from studio.evaluation.rows import AnsweredRow
from studio.evaluation.text_scores import Statistics, parse_json, share


@dataclass(frozen=True, slots=True)
class Schema:
    """What some JSON values have in common."""

    types: frozenset[str] = frozenset()
    keys: Mapping[str, "Schema"] = field(default_factory=dict)
    """The schema of each key of the objects."""
    required: frozenset[str] = frozenset()
    """The keys of all objects. If others occur in some, any key may."""
    items: "Schema | None" = None
    """The schema of the items of arrays; None if all are empty."""

    def fits(self, value: object) -> bool:
        """Whether a value could be one of these."""
        if _type(value) not in self.types:
            return False
        if isinstance(value, dict):
            known = all(self.keys[key].fits(one) for key, one in value.items() if key in self.keys)
            is_open = len(self.required) < len(self.keys)
            return (
                known
                and value.keys() >= self.required
                and (is_open or value.keys() <= self.keys.keys())
            )
        if isinstance(value, list):
            return self.items is None or all(map(self.items.fits, value))
        return True


def derive(values: Sequence[object]) -> Schema:
    """Return what values have in common."""
    objects = [value for value in values if isinstance(value, dict)]
    items = [item for value in values if isinstance(value, list) for item in value]
    keys = {key for value in objects for key in value}
    return Schema(
        types=frozenset(map(_type, values)),
        keys={key: derive([one[key] for one in objects if key in one]) for key in keys},
        required=frozenset(key for key in keys if all(key in one for one in objects)),
        items=derive(items) if items else None,
    )


def fit_references(
    rows: Sequence[AnsweredRow],
) -> Callable[[AnsweredRow], Statistics | None]:
    """Return what counts answers that fit the schema of the references that are JSON."""
    parsed = [parse_json(row.reference) for row in rows]
    schema = derive([value for value in parsed if value is not None])

    def count(row: AnsweredRow) -> Statistics | None:
        if parse_json(row.reference) is None:
            return None
        answer = parse_json(row.answer)
        return share(answer is not None and schema.fits(answer))

    return count


def _type(value: object) -> str:
    """Return the JSON type of a parsed value; `parse_json` makes numbers tuples."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", tuple: "number"}
    return names.get(type(value), "null")
