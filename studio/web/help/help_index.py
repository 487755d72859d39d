"""Content of the help pages, from its declarations: settings, precisions, error codes."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from studio.failure_codes import FAILURE_CODES
from studio.failure_codes import FailureCode as Failure
from studio.methods import METHODS
from studio.recipe.dotted_keys import nest
from studio.recipe.field_reference import FieldReference, field_references
from studio.recipe.precision import PRECISIONS, Precision
from studio.web.i18n.translation import translate


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """The settings of one section."""

    title: str
    description: str
    entries: Sequence[FieldReference]


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpMatches:
    """The help entries that match a query; all of them for an empty one."""

    sections: Sequence[Chapter]
    precisions: Sequence[Precision]
    failures: Sequence[Failure]

    @property
    def count(self) -> int:
        knobs_found = sum(len(chapter.entries) for chapter in self.sections)
        return knobs_found + len(self.precisions) + len(self.failures)


@lru_cache(maxsize=1)
def recipe_fields() -> dict[str, FieldReference]:
    """Return every setting by its dotted name, in the order of the recipe."""
    entries = (entry for method in METHODS.values() for entry in field_references(method.recipe))
    return {entry.name: entry for entry in entries}


def search_help(query: str) -> HelpMatches:
    words = query.casefold().split()
    return HelpMatches(
        sections=_group_by_section(
            entry
            for entry in recipe_fields().values()
            if entry.matches(words) or _contains_all(words, entry.label, entry.help)
        ),
        precisions=[
            mode
            for mode in PRECISIONS.values()
            if _contains_all(words, mode.name, mode.title, mode.summary)
        ],
        failures=[
            kind
            for kind in FAILURE_CODES.values()
            if _contains_all(words, kind.code, kind.title, kind.meaning, kind.remedy)
        ],
    )


def usage_examples(entry: FieldReference) -> list[tuple[str, str]]:
    """Return titled examples that set it in a recipe, on the command line and over REST."""
    value = next((choice for choice in entry.choices if choice != entry.default), entry.default)
    value = "starter" if entry.required else value
    *parents, leaf = entry.name.split(".")
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(parents)]
    lines.append(f"{'  ' * len(parents)}{leaf}: {json.dumps(value)}")
    plain = value if isinstance(value, str) else json.dumps(value)
    return [
        ("In a recipe", "\n".join(lines)),
        ("On the command line", f"studio train recipe.yaml --set {entry.name}={plain}"),
        ("Over REST", json.dumps({"recipe": nest([(entry.name, value)])})),
    ]


def section_fields(entry: FieldReference) -> list[FieldReference]:
    """Return the other settings of the same section."""
    return [
        other
        for other in recipe_fields().values()
        if other.group == entry.group and other is not entry
    ]


def section_title(entry: FieldReference) -> str:
    """Return the title of the entry's section."""
    group = entry.group.rpartition(".")[2].replace("_", " ").capitalize()
    return entry.section.model_config.get("title") or group or "What to train"


def _group_by_section(entries: Iterable[FieldReference]) -> list[Chapter]:
    by_title: dict[str, list[FieldReference]] = {}
    for entry in entries:
        by_title.setdefault(section_title(entry), []).append(entry)
    return [
        Chapter(
            title=title,
            description=_intro(section_entries[0]) if section_entries[0].group else "",
            entries=section_entries,
        )
        for title, section_entries in by_title.items()
    ]


def _intro(entry: FieldReference) -> str:
    return (entry.section.__doc__ or "").partition("\n\n")[0].strip()


def _contains_all(words: list[str], *texts: str) -> bool:
    """Whether all words are in the texts, in English or as translated on the page."""
    joined = " ".join((*texts, *map(translate, texts))).casefold()
    return all(word in joined for word in words)
