"""What the bench of pages weighs: all that a page makes a browser fetch."""

from fastapi.testclient import TestClient

from studio.web.rendering import static_files
from tests.bench.page_weight import contents


def test_page_weight_counts_bundled_css_and_every_module(client: TestClient) -> None:
    html = client.get("/").text
    scripts = contents(html, "js")

    assert contents(html, "css") == [static_files.bundle_content()]
    assert any(b"uPlot" in one for one in scripts)
    assert len(scripts) > html.count(".js")
