"""The form of an experiment that the graders page keeps while a grader is built for it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from studio.errors import InvalidError
from studio.recipe.dotted_keys import flatten, nest
from studio.web.http.deps import MAX_FORM_FIELDS


def find_grader(posted: Mapping[str, Any]) -> str | None:
    """Return the grader's JSON if the form of an experiment was posted, else None."""
    reward = posted.get("reward")
    return str(reward.get("grader", "")) if isinstance(reward, Mapping) else None


def pack(posted: Mapping[str, Any]) -> str:
    """Return a posted form as one text, as a browser would send it."""
    return urlencode(flatten(posted))


def unpack(text: str) -> dict[str, Any]:
    """Return the form in a text.

    Raises:
        InvalidError: it is none.

    """
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError as error:
        raise InvalidError("The form is not complete.", hint="Reload the page.") from error
    return nest(pairs)
