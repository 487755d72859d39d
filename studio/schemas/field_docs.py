"""Models whose fields are described by the texts under them, read when somebody asks.

Pydantic's own `use_attribute_docstrings` reads the source of every class while it is made: a
millisecond each, for texts that most processes never show.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Described:
    """What a model has beside its base, to tell the texts of its fields in its JSON schema."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        told = handler(schema)
        properties = handler.resolve_ref_schema(told).get("properties", {})
        model = cast("type[BaseModel]", cls)
        for name, text in texts(model).items():
            if field := properties.get(model.model_fields[name].alias or name):
                field.setdefault("description", text)
        return told


@cache
def texts(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the text under each field of a model, its own or of the class it has the field from.

    A field without one is left out.
    """
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if isinstance(owner, type) and issubclass(owner, BaseModel):
            found |= _of_module(owner.__module__).get(owner.__qualname__, {})
    return {name: found[name] for name in model.model_fields if name in found}


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {node.name: dict(_fields(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(made: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(made.body, made.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(said))),
            ):
                yield name, inspect.cleandoc(said)
