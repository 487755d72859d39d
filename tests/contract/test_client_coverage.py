"""The client asks for what there is, and reads what is answered."""

import inspect
import json
import re
from typing import Any

import pytest

from studio.client import endpoints, schemas
from studio.client.endpoints import ApiRequest, PagedRequest
from studio.commands import docs

DOCUMENT: dict[str, Any] = json.loads(docs.openapi())
MADE: dict[str, tuple[Any, ...]] = {
    "submit_run": ("name", {}),
    "create_experiment": ("name", {}),
    "add_dataset": ("rows.jsonl",),
    "bring_dataset": ({"kind": "url", "url": "x"},),
    "create_sweep": (1, {}),
    "prospect": (1, {}),
    "compare": ([1],),
    "comparison_report": ([1],),
    "move_run": (1, 2),
    "change_run": (1,),
    "add_model": ("/folder",),
    "download_model": ("a/b",),
    "model": ("starter",),
    "import_recipe": ("stage: sft",),
    "push_export": (1, 1, "me/mine"),
}
BUILDERS = {
    name: one
    for name, one in vars(endpoints).items()
    if inspect.isfunction(one) and one.__module__ == endpoints.__name__ and not name.startswith("_")
}
NAMES = {
    "File": "ArtifactOut",
    "Run": "RunDetailOut",
    "Comparison": "ComparisonOut",
    "ComparisonCell": "CellOut",
    "LoadedModel": "LoadedOut",
    "Sweep": "SweepOut",
    "HubPush": "PushOut",
}


def built(name: str) -> ApiRequest[Any]:
    builder = BUILDERS[name]
    wanted = [
        one
        for one in inspect.signature(builder).parameters.values()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    made: ApiRequest[Any] | PagedRequest[Any] = builder(*MADE.get(name, [1] * len(wanted)))
    return made.page(None) if isinstance(made, PagedRequest) else made


@pytest.mark.parametrize("name", BUILDERS)
def test_every_client_call_is_in_openapi_document(name: str) -> None:
    call = built(name)
    found = [
        path
        for path, there in DOCUMENT["paths"].items()
        if call.method.lower() in there
        and re.fullmatch(re.sub(r"{[^}]*}", "[^/]+", path), f"/api/v1{call.path}")
    ]

    assert found
    taken = {
        one["name"]
        for path in found
        for one in DOCUMENT["paths"][path][call.method.lower()].get("parameters", ())
        if "name" in one
    }
    assert set(call.params) <= taken


@pytest.mark.parametrize(
    "shape",
    [
        one
        for one in vars(schemas).values()
        if (
            inspect.isclass(one)
            and issubclass(one, schemas.Schema)
            and one is not schemas.Schema
            and NAMES.get(one.__name__, f"{one.__name__}Out") in DOCUMENT["components"]["schemas"]
        )
        or one is schemas.Run
    ],
    ids=lambda one: one.__name__,
)
def test_every_required_client_field_is_in_openapi_schema(shape: type[schemas.Schema]) -> None:
    name = NAMES.get(shape.__name__, f"{shape.__name__}Out")
    answered = DOCUMENT["components"]["schemas"][name]["properties"]
    read = {name for name, field in shape.model_fields.items() if field.is_required()}

    assert read <= answered.keys()
