"""Which settings belong to one variant of a section: LoRA has a rank, a full fine-tune has none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from studio.recipe.fields import Section, section_types


@dataclass(frozen=True, slots=True)
class VariantField:
    """The variants of a section that have a setting."""

    discriminator: str
    """The dotted name of the field that selects the variant."""
    variants: tuple[str, ...]
    """The variants that have the setting."""


@cache
def variant_fields(recipe: type[Section]) -> dict[str, VariantField]:
    """Return the settings that only some variants of a section have, by dotted name."""
    return dict(_find_variant_fields(recipe, ""))


@cache
def discriminators(recipe: type[Section]) -> dict[str, tuple[str, ...]]:
    """Return the dotted names of the fields that select a variant, with their variants."""
    return dict(_find_discriminators(recipe, ""))


def active_settings(
    recipe: type[Section], values: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that have an effect once all are applied to a recipe's values."""
    restricted = variant_fields(recipe)
    merged = {**values, **settings}
    return {
        name: value
        for name, value in settings.items()
        if (variant_field := restricted.get(name)) is None
        or merged[variant_field.discriminator] in variant_field.variants
    }


def _find_variant_fields(section: type[Section], prefix: str) -> Iterator[tuple[str, VariantField]]:
    for name, info in section.model_fields.items():
        variants = section_types(info.annotation)
        for variant in variants:
            yield from _find_variant_fields(variant, f"{prefix}{name}.")
        if len(variants) < 2:  # noqa: PLR2004 -- a single variant is not a choice
            continue
        switch = str(info.discriminator)
        variants_by_field: dict[str, list[str]] = {}
        for variant in variants:
            for field in variant.model_fields.keys() - {switch}:
                variants_by_field.setdefault(field, []).append(
                    str(variant.model_fields[switch].default)
                )
        for field, names in variants_by_field.items():
            yield f"{prefix}{name}.{field}", VariantField(f"{prefix}{name}.{switch}", tuple(names))


def _find_discriminators(
    section: type[Section], prefix: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, info in section.model_fields.items():
        variants = section_types(info.annotation)
        if len(variants) == 1:
            yield from _find_discriminators(variants[0], f"{prefix}{name}.")
        elif variants:
            switch = str(info.discriminator)
            names = tuple(str(variant.model_fields[switch].default) for variant in variants)
            yield f"{prefix}{name}.{switch}", names
