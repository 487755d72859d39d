"""The page that tells the API: all of its document, and nothing from elsewhere."""

from typing import Any

from fastapi.testclient import TestClient


def test_every_call_and_every_shape_is_told(client: TestClient) -> None:
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


def test_every_link_of_it_leads_somewhere(client: TestClient) -> None:
    page = client.get("/docs").text
    links = {part.partition('"')[0] for part in page.split('href="#')[1:]} - {"main"}

    assert [link for link in links if f'id="{link}"' not in page] == []
