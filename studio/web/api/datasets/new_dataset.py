"""The request that creates a dataset: an uploaded file, or JSON that names its source."""

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
                        "name": {"type": "string", "description": "Defaults to the file name."},
                        "mapping": {
                            "type": "string",
                            "description": "How columns become rows: a Mapping as JSON. Detected "
                            "by default.",
                        },
                        "encoding": {
                            "type": "string",
                            "description": "Text encoding by its Python name, such as gb18030 or "
                            "cp1252. Detected by default.",
                        },
                        "sheet": {
                            "type": "string",
                            "description": "The sheet of an Excel workbook to read. Defaults to "
                            "the first sheet with rows.",
                        },
                        "separator": {
                            "type": "string",
                            "enum": [",", ";", "tab", "|", "^"],
                            "description": "The delimiter of a CSV file. Detected by default.",
                        },
                        "header": {
                            "type": "string",
                            "enum": ["yes", "no"],
                            "description": "Whether the first line of a table is a header. "
                            "Detected by default.",
                        },
                        "draft": {
                            "type": "boolean",
                            "description": "Save the file and wait for a mapping.",
                        },
                    },
                }
            },
            "application/json": {"schema": {"$ref": "#/components/schemas/NewImport"}},
        },
    }
}
"""The OpenAPI schema of the body. FastAPI cannot infer it: the route parses the body itself."""


class NewImport(Body):
    """A dataset to import from a folder, a URL, the Hugging Face Hub, S3 or a chunked upload."""

    source: Source
    name: str = Field(default="", max_length=200)
    """The name of the dataset; defaults to the file name."""


async def _parse_request(request: Request, config: Config) -> AsyncIterator[Upload | NewImport]:
    if request.headers.get("content-type", "").partition(";")[0].strip() == "application/json":
        yield _parse_import(await request.body())
        return
    async with asynccontextmanager(receive_dataset)(request, config) as upload:
        yield upload


def _parse_import(body: bytes) -> NewImport:
    try:
        return NewImport.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [detail | {"loc": ("body", *detail["loc"])} for detail in details]
        ) from error


NewDataset = Annotated[Upload | NewImport, Depends(_parse_request)]
