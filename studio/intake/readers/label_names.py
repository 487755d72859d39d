"""The names of the numbers in lists of labels, from what Hugging Face Datasets writes into a file.

Its features are JSON in the metadata of the file's schema.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_KEY = b"huggingface"

LabelNames = Mapping[str, Sequence[str]]
"""The names of the labels in the lists of a column, by column."""


def read_label_names(metadata: Mapping[bytes, bytes] | None) -> LabelNames:
    """Return the names that a file has for the numbers in its lists; none if it is damaged."""
    try:
        features: Any = json.loads((metadata or {}).get(_KEY, b"{}"))
    except ValueError:
        return {}
    match features:
        case {"info": {"features": {**columns}}}:
            found = {str(column): _item_names(feature) for column, feature in columns.items()}
            return {column: names for column, names in found.items() if names}
    return {}


def _item_names(feature: object) -> list[str]:
    match feature:
        # Versions before 4 wrote Sequence or a list of one feature.
        case {"feature": {"_type": "ClassLabel", "names": [*names]}} | [
            {"_type": "ClassLabel", "names": [*names]}
        ]:
            return [str(name) for name in names]
    return []


def name_labels(column: str, value: object, names: LabelNames) -> object:
    """Return a list with names instead of numbers, if its column has names for all of them."""
    known = names.get(column, ())
    if not known or not isinstance(value, list):
        return value
    is_named = all(isinstance(one, int) and 0 <= one < len(known) for one in value)
    return [known[one] for one in value] if is_named else value
