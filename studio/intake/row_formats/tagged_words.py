"""Words with tags: read them from lists, from spans of a text or from lines, and bring them to BIO.

In BIO, the first word of an entity has the tag B- with the entity's label, its other words I-, and
words outside of any entity have O.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from unicodedata import category

from studio.intake.problems import ProblemCode
from studio.intake.row_formats.message_formats import (
    MappedRow,
    is_number,
    parse_json_cell,
    parse_list_cell,
    require_text,
    to_text,
)
from studio.intake.row_formats.schema import TokensRow, UnusableRowError

OUTSIDE = "O"
"""The tag of words that belong to no entity."""
_OUTSIDE_TAGS = frozenset({"", "o", "0", "_", "-"})
"""How files write it; 0 is the number that nearly all lists of tags give it."""
_NO_LABEL = "ENTITY"
"""The label of entities whose tags are B and I alone."""
_TAG = re.compile(r"(?P<place>[BILUESM])-(?P<label>.+)|(?P<only>[BI])", re.DOTALL)
"""Tags of IOB, IOBES (also named BIOES, and BMES) and BILOU."""
_BEGINS, _ENDS = frozenset("BUS"), frozenset("ELUS")

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
    "\U00020000-\U0003ffff]"
)
"""Characters of scripts that write no spaces between words: Thai, Lao, Burmese, Khmer, Chinese and
Japanese."""


class Entity(NamedTuple):
    """An entity: its words, by index, and its label."""

    start: int
    end: int
    """The index after its last word."""
    label: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a text: an entity with its label, or what stands between entities."""

    text: str
    label: str = ""


def build_tagged_words(cells: MappedRow, _system: str) -> TokensRow:
    """Return the words of a list with the tags of another one.

    Raises:
        UnusableRowError: one of them is no list, or they differ in length.

    """
    words, tags = (list_items(cells, role) for role in ("words", "tags"))
    if len(words) != len(tags):
        detail = f"{len(words):,} words, {len(tags):,} tags"
        raise UnusableRowError(ProblemCode.UNEQUAL_LISTS, detail)
    return _join_words([(require_text(word), to_text(tag)) for word, tag in zip(words, tags)])  # noqa: B905 -- equal


def list_items(cells: MappedRow, role: str) -> list[Any]:
    """Return the items of a list; a text may list them with spaces between, as NumPy writes them.

    Raises:
        UnusableRowError: there is no list.

    """
    listed = cells.items(role)
    if listed is None:
        text = cells.text(role)
        listed = (text[1:-1] if text[:1] + text[-1:] == "[]" else text).split()
    if not listed:
        raise UnusableRowError(ProblemCode.NO_WORDS)
    return listed


def build_tagged_lines(cells: MappedRow, _system: str) -> TokensRow:
    """Return the words of lines in CoNLL's format: a word, maybe other columns, and its tag.

    Raises:
        UnusableRowError: a line has no tag, or it only marks where a document begins.

    """
    lines = list(read_tagged_lines(cells.text("lines")))
    if lines and lines[0][0] == "-DOCSTART-":
        raise UnusableRowError(ProblemCode.DOCUMENT_START)
    for line in lines:
        if len(line) == 1:
            raise UnusableRowError(ProblemCode.NO_TAG, line[0][:50])
    return _join_words([(line[0], line[-1]) for line in lines])


def read_tagged_lines(text: str) -> Iterator[list[str]]:
    """Yield the columns of each line.

    Comments are left out: lines that start with # and do not end in a tag.
    """
    for line in text.splitlines():
        columns = line.strip().split("\t") if "\t" in line.strip() else line.split()
        columns = [column.strip() for column in columns]
        if columns and not (columns[0].startswith("#") and not is_tag(columns[-1])):
            yield columns


def is_tag(text: str) -> bool:
    """Whether a text is a tag in one of the known schemes."""
    return text == OUTSIDE or _TAG.fullmatch(text) is not None


def _join_words(pairs: Sequence[tuple[str, str]]) -> TokensRow:
    """Return words as a text, with a space between those that their script separates."""
    pairs = [(word.strip(), tag) for word, tag in pairs if word.strip()]
    if not pairs:
        raise UnusableRowError(ProblemCode.NO_WORDS)
    words = [word for word, _tag in pairs]
    text = words[0]
    for before, word in pairwise(words):
        is_joined = _UNSPACED.match(before[-1]) and _UNSPACED.match(word[0])
        text += word if is_joined else f" {word}"
    return {"text": text, "words": words, "tags": to_bio([tag for _word, tag in pairs])}


def to_bio(tags: Sequence[str]) -> list[str]:
    """Return tags of any scheme in BIO.

    A tag that continues no entity begins one. Tags without a scheme are labels: neighbours with the
    same label are one entity.
    """
    found, open_label = [], ""
    for tag in tags:
        place, label = _split_tag(tag.strip())
        if not label:
            open_label = ""
            found.append(OUTSIDE)
            continue
        begins = place in _BEGINS or label != open_label
        found.append(f"{'B' if begins else 'I'}-{label}")
        open_label = "" if place in _ENDS else label
    return found


def _split_tag(tag: str) -> tuple[str, str]:
    """Return where in its entity a word is, and the entity's label; that is empty outside."""
    if tag.lower() in _OUTSIDE_TAGS:
        return OUTSIDE, ""
    match = _TAG.fullmatch(tag)
    if match is None:
        return "I", tag
    return match["only"] or match["place"], (match["label"] or _NO_LABEL).strip() or _NO_LABEL


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of tags in BIO; an I- that continues no entity begins one."""
    found: list[Entity] = []
    for place, tag in enumerate(tags):
        label = tag[2:]
        last = found[-1] if found else Entity(0, 0, "")
        if tag.startswith("I-") and last.end == place and last.label == label:
            found[-1] = last._replace(end=place + 1)
        elif tag != OUTSIDE:
            found.append(Entity(place, place + 1, label))
    return found


def split_words(text: str) -> list[tuple[int, int]]:
    """Return where the words of a text start and end.

    Marks and symbols are words of their own, and so are the characters of scripts without spaces.
    """
    found: list[tuple[int, int]] = []
    is_open = False
    for place, letter in enumerate(text):
        if letter.isspace():
            is_open = False
            continue
        alone = category(letter)[0] in "PS" or _UNSPACED.match(letter) is not None
        if is_open and not alone:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
        is_open = not alone
    return found


def place_words(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Return where the words of a row start and end in its text.

    Raises:
        ValueError: a word is not in the text, or not in this order.

    """
    found, end = [], 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        found.append((start, end))
    return found


def build_spans(cells: MappedRow, _system: str) -> TokensRow:
    """Return the words of a text; an entity has all words that its span touches.

    Raises:
        UnusableRowError: spans are no such list, overlap, or are out of the text.

    """
    text = cells.text("text")
    places = split_words(text)
    if not places:
        raise UnusableRowError(ProblemCode.NO_TEXT)
    tags = [OUTSIDE] * len(places)
    starts, ends = [start for start, _ in places], [end for _, end in places]
    for start, end, label in sorted(set(read_spans(cells.value("spans")))):
        if not 0 <= start < end <= len(text) or not text[start:end].strip():
            detail = f"characters {start:,} to {end:,} of {len(text):,}"
            raise UnusableRowError(ProblemCode.SPAN_OUTSIDE, detail)
        first, after = bisect_right(ends, start), bisect_left(starts, end)
        if any(tag != OUTSIDE for tag in tags[first:after]):
            raise UnusableRowError(ProblemCode.OVERLAPPING_SPANS, text[start:end][:50])
        tags[first:after] = [f"B-{label}", *[f"I-{label}"] * (after - first - 1)]
    return {"text": text, "words": [text[start:end] for start, end in places], "tags": tags}


_START_KEYS = ("start", "start_offset", "start_char", "begin", "startOffset")
_END_KEYS = ("end", "end_offset", "end_char", "stop", "endOffset")
_LABEL_KEYS = (
    *("label", "labels", "type", "entity_group", "entity_type", "entity", "ent_type", "tag"),
    *("class", "category"),
)


def read_spans(value: Any) -> Iterator[tuple[int, int, str]]:  # noqa: ANN401 -- from a user's file
    """Yield the start, end and label of each span in a cell.

    Raises:
        UnusableRowError: it holds anything else.

    """
    match parse_list_cell(value):
        case None | "":
            return
        case {"entities": [*listed]} | {"spans": [*listed]} | [*listed]:
            yield from map(_read_span, map(parse_json_cell, listed))
        case _:
            raise UnusableRowError(ProblemCode.BAD_SPANS)


def _read_span(span: Any) -> tuple[int, int, str]:  # noqa: ANN401 -- from a user's file
    match span:
        case {"value": {**inner}}:  # Label Studio
            return _read_span(inner)
        case {**named}:
            start, end, label = (
                _first_value(named, keys) for keys in (_START_KEYS, _END_KEYS, _LABEL_KEYS)
            )
        case [start, end, label]:
            pass
        case _:
            raise UnusableRowError(ProblemCode.BAD_SPANS)
    # Label Studio lists the labels of a span; several are several entities in one place.
    labels = label if isinstance(label, list) else [label]
    if len(labels) > 1:
        raise UnusableRowError(ProblemCode.OVERLAPPING_SPANS)
    name = to_text(labels[0]).strip() if labels else ""
    if not name or not _is_whole(start) or not _is_whole(end):
        raise UnusableRowError(ProblemCode.BAD_SPANS)
    return int(float(start)), int(float(end)), name


def _first_value(named: Mapping[Any, Any], keys: Sequence[str]) -> Any:  # noqa: ANN401 -- from a user's file
    return next((named[key] for key in keys if named.get(key) is not None), None)


def _is_whole(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    is_scalar = isinstance(value, int | float | str) and not isinstance(value, bool)
    return is_scalar and is_number(to_text(value)) and float(value).is_integer()


def split_segments(row: Mapping[str, Any], limit: int | None = None) -> list[Segment]:
    """Return the text of a row in pieces: its entities, and what stands between them.

    `limit` is the number of characters to show.
    """
    text: str = row["text"]
    places = place_words(text, row["words"])
    spans = [
        (places[one.start][0], places[one.end - 1][1], one.label)
        for one in find_entities(row["tags"])
    ]
    return list(mark_spans(text[:limit], spans))


def mark_spans(text: str, spans: Sequence[tuple[int, int, str]]) -> Iterator[Segment]:
    """Yield the pieces of a text: its spans in order, and what stands between them."""
    place = 0
    for start, end, label in spans:
        if start >= len(text):
            break
        if start > place:
            yield Segment(text[place:start])
        yield Segment(text[start:end], label)
        place = end
    if place < len(text):
        yield Segment(text[place:])
