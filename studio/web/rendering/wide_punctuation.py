"""Remove the spaces of templates after wide punctuation.

Templates put a space between two sentences. Chinese punctuation is as wide as a character and has
room in itself, so no space follows it. Only spaces of templates are removed: where a value ends is
marked while rendering, so spaces within values, such as rows of data, stay.
"""

import re

_WIDE = ("\u3002", "\uff0c", "\uff1a", "\uff01", "\uff1f", "\uff1b")
"""Full stop, comma, colon, exclamation mark, question mark and semicolon."""
_END = "\ufdd0"
"""Marks the end of a value. Unicode reserves it for use within a program."""
_SPACE_AFTER_END = re.compile(
    rf"{_END}((?:</(?:a|b|code|em|small|span|strong|time)>)*)\s+"
    r"(?=[^\s<]|<(?:a|b|code|em|small|span|strong|time)\b)"
)
"""Text that another text of the same line follows. The space before a block or a button stays."""


def mark_end(value: object) -> object:
    """Mark the end of a template value that ends with wide punctuation."""
    if isinstance(value, str) and value.endswith(_WIDE):
        return value + _END
    return value


def remove_spaces(html: str) -> str:
    """Remove the spaces that follow marked ends, and the marks."""
    if _END not in html:
        return html
    return _SPACE_AFTER_END.sub(r"\1", html).replace(_END, "")
