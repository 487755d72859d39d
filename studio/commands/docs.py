"""`studio docs`: the reference that is written from the code, so that it cannot drift from it."""

import json
from collections.abc import Iterator
from inspect import getdoc
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from studio.db.session import open_engine
from studio.failure_codes import FAILURE_CODES
from studio.methods import METHODS
from studio.recipe.field_reference import FieldReference, field_references
from studio.recipe.fields import Section
from studio.recipe.precision import PRECISIONS, Precision
from studio.settings import Settings
from studio.web.app import create_app

_PRECISIONS = """
## Precisions

The last two columns are for models sharded over several GPUs (FSDP): the format in which each GPU
gathers the others' weights, and the one in which their gradients are summed.

| precision | name | weights | products read, give | optimizer | bytes | gathered | summed |
|---|---|---|---|---|---|---|---|
"""
_TABLE_HEADER = (
    "| knob | name | default | takes | becomes | what it does |\n|---|---|---|---|---|---|"
)


def write_all(folder: Path) -> None:
    """Write `knobs.md`, `failures.md` and `openapi.json` into the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "failures.md").write_text(failures(), encoding="utf-8")
    (folder / "knobs.md").write_text(knobs(), encoding="utf-8")
    (folder / "openapi.json").write_text(openapi(), encoding="utf-8")


def knobs() -> str:
    """Return every setting of every method, and every precision, as tables, in Markdown."""
    parts = ["# Knobs\n\nWritten by `make docs` from `studio/recipe` and `studio/methods`.\n"]
    for method in METHODS.values():
        parts += [f"\n## {method.title} (`{method.name}`)\n\n{method.summary}\n"]
        parts += _tables(method.recipe)
    parts += [_PRECISIONS, *(_precision_row(mode) for mode in PRECISIONS.values())]
    return "".join(parts)


def failures() -> str:
    """Return every code of a failure, in Markdown: a heading each, so that it can be linked to."""
    told = "Each run that fails has one of these codes, on its page and in the REST answer."
    parts = [f"# Failures\n\nWritten by `make docs` from `studio/failure_codes.py`. {told}\n"]
    for one in FAILURE_CODES.values():
        parts += [f"\n## {one.code}\n\n**{one.title}.** {one.meaning}\n\n{one.remedy}\n"]
    return "".join(parts)


def openapi() -> str:
    """Return the description of the REST API, as OpenAPI JSON."""
    with TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        engine = open_engine(settings.database)
        text = json.dumps(create_app(engine, settings).openapi(), indent=1) + "\n"
        engine.dispose()
    return text


def _tables(recipe: type[Section]) -> Iterator[str]:
    for (section, group), knobs_of_it in groupby(
        field_references(recipe), key=lambda entry: (entry.section, entry.group)
    ):
        title = f"\n### {group}\n\n{getdoc(section)}\n" if group else ""
        yield f"{title}\n{_TABLE_HEADER}\n" + "".join(map(_field_row, knobs_of_it))


def _precision_row(mode: Precision) -> str:
    cells = (
        mode.title,
        f"`{mode.name}`",
        mode.weights,
        f"{mode.products}, {mode.compute}",
        f"{mode.optimizer}, {mode.optimizer_states}",
        f"{mode.bytes_per_parameter}",
        mode.param_dtype,
        mode.reduce_dtype,
    )
    return f"| {' | '.join(cells)} |\n"


def _field_row(entry: FieldReference) -> str:
    cells = (
        entry.label,
        f"`{entry.name}`",
        "required" if entry.required else f"`{entry.default}`",
        ", ".join(f"`{choice}`" for choice in entry.choices) or entry.legal,
        f"`{entry.upstream}`" if entry.upstream else "",
        entry.help,
    )
    return f"| {' | '.join(cells)} |\n"
