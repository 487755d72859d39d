"""What comes to make a data set of: a file in a form, or JSON that says where there is one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from studio.data_sources import Source
from studio.services.datasets.pending_datasets import Upload
from studio.web.api.conventions.schemas import Body
from studio.web.http.deps import Config
from studio.web.http.multipart_upload import receive_dataset

_BINARY = {"type": "string", "format": "binary"}
REQUEST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": _BINARY,
                        "validation_file": _BINARY,
                        "name": {"type": "string", "description": "By default the file's."},
                        "mapping": {
                            "type": "string",
                            "description": "How to read it: a Mapping as JSON. By default as "
                            "its columns say.",
                        },
                        "encoding": {
                            "type": "string",
                            "description": "Of a text, as Python names it: gb18030, cp1252. By "
                            "default it is detected.",
                        },
                        "sheet": {
                            "type": "string",
                            "description": "Of an Excel workbook: the name of the sheet to read. "
                            "By default the first that has rows.",
                        },
                        "separator": {
                            "type": "string",
                            "enum": [",", ";", "tab", "|", "^"],
                            "description": "What stands between the cells of a table. By default "
                            "it is detected.",
                        },
                        "header": {
                            "type": "string",
                            "enum": ["yes", "no"],
                            "description": "Whether the first line of a table names its columns. "
                            "By default it is detected.",
                        },
                        "draft": {
                            "type": "boolean",
                            "description": "Keep the file, and wait for a mapping.",
                        },
                    },
                }
            },
            "application/json": {"schema": {"$ref": "#/components/schemas/NewImport"}},
        },
    }
}
"""Both as OpenAPI tells it, for FastAPI does not see it: we read the body ourselves."""


class NewImport(Body):
    """Data from elsewhere: from a folder, an address, the hub, S3, or sent in parts."""

    source: Source
    name: str = Field(default="", max_length=200)
    """What the data set will be called; nothing means as the file is."""


async def _parse_request(request: Request, config: Config) -> AsyncIterator[Upload | NewImport]:
    if request.headers.get("content-type", "").partition(";")[0].strip() == "application/json":
        yield _parse_import(await request.body())
        return
    async with asynccontextmanager(receive_dataset)(request, config) as upload:
        yield upload


def _parse_import(sent: bytes) -> NewImport:
    try:
        return NewImport.model_validate_json(sent)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [one | {"loc": ("body", *one["loc"])} for one in found]
        ) from error


NewDataset = Annotated[Upload | NewImport, Depends(_parse_request)]
