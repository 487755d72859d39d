"""The page that tells the API: all of its document, and nothing from elsewhere."""

from typing import Any

from fastapi.testclient import TestClient


def test_api_reference_lists_every_operation_and_schema(client: TestClient) -> None:
    document: dict[str, Any] = client.get("/openapi.json").json()
    page = client.get("/docs").text
    calls = [
        f'<span class="chip">{method.upper()}</span> <code>{path}</code>'
        for path, there in document["paths"].items()
        for method in there
    ]

    assert [call for call in calls if call not in page] == []
    assert [
        name for name in document["components"]["schemas"] if f'id="shape-{name}"' not in page
    ] == []


def test_every_internal_link_has_target(client: TestClient) -> None:
    page = client.get("/docs").text
    links = {part.partition('"')[0] for part in page.split('href="#')[1:]} - {"main"}

    assert [link for link in links if f'id="{link}"' not in page] == []
