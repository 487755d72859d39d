"""Field descriptions from attribute docstrings, read on demand.

Pydantic's `use_attribute_docstrings` reads the source of every class when it is created: a
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


class FieldDocs:
    """A mixin that adds attribute docstrings to a model's JSON schema as descriptions."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema = handler(schema)
        properties = handler.resolve_ref_schema(json_schema).get("properties", {})
        model = cast("type[BaseModel]", cls)
        for name, text in field_descriptions(model).items():
            if field := properties.get(model.model_fields[name].alias or name):
                field.setdefault("description", text)
        return json_schema


@cache
def field_descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstring of each field of a model, including inherited ones.

    Fields without a docstring are omitted.
    """
    descriptions: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if isinstance(owner, type) and issubclass(owner, BaseModel):
            descriptions |= _descriptions_by_class(owner.__module__).get(owner.__qualname__, {})
    return {name: descriptions[name] for name in model.model_fields if name in descriptions}


@cache
def _descriptions_by_class(name: str) -> Mapping[str, Mapping[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {
        node.name: dict(_documented_fields(node))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def _documented_fields(class_def: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(class_def.body, class_def.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                yield name, inspect.cleandoc(docstring)
