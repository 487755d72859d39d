"""A report, saved from the studio and opened as a file by somebody without a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from studio.db.session import open_engine, unit_of_work
from studio.protocols.events import Sampled, SampleStage
from studio.services.runs import attempts
from tests.support.factories import make_finished_run, metrics_event
from tests.support.live_studio import Studio, stop_everything

pytestmark = pytest.mark.e2e

HOSTILE = "</style><script>document.title = 'taken'</script><img src=http://example.org/x>"


def answer(stage: SampleStage, text: str) -> Sampled:
    step = 0 if stage == "before" else 10
    return Sampled(stage=stage, step=step, position=0, prompt="Who?", reference="Me.", answer=text)


@pytest.fixture(scope="module")
def reported(starter_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """Give a studio of two runs with answers, without a worker."""
    studio = Studio.copied(starter_home, tmp_path_factory.mktemp("reported") / "home")
    studio.worker = False
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        for precision, last in (("fp32", "Me."), ("bf16", HOSTILE)):
            run = make_finished_run(db, f"in {precision}", precision=precision)
            told = [answer("before", "You."), answer("after", last)]
            attempts.apply_events(db, run, [*told, metrics_event(11, eval_loss=1.0)], 2000)
    engine.dispose()
    studio.start()
    yield studio
    stop_everything(studio)


@pytest.fixture
def online(browser: Browser, reported: Studio) -> Iterator[Page]:
    context = browser.new_context(base_url=reported.url, reduced_motion="reduce")
    context.set_default_timeout(120_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def offline(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(offline=True)
    yield context
    context.close()


def save(page: Page, folder: Path) -> Path:
    """Download the report in view, and return its file."""
    with page.expect_download() as download:
        page.get_by_role("link", name="Download this report").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def open_file(context: BrowserContext, path: Path) -> tuple[Page, list[str], list[str]]:
    """Open a file; return the page with what it requested beside itself, and its complaints."""
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    others = [url for url in requests if url != path.as_uri() and not url.startswith("data:")]
    return page, others, complaints


def violations(page: Page) -> list[str]:
    found = []
    page.evaluate(Axe().axe_script)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        result = page.evaluate("() => axe.run({ resultTypes: ['violations'] })")
        found += [f"{scheme}: {one['id']}" for one in result["violations"]]
    return found


def background(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return colour


def test_saved_report_of_run_opens_offline(
    online: Page, offline: BrowserContext, tmp_path: Path
) -> None:
    online.goto("/runs/1")
    online.get_by_label("More actions").click()
    online.get_by_role("link", name="Report", exact=True).click()
    expect(online.get_by_role("heading", level=1)).to_contain_text("in fp32")
    path = save(online, tmp_path)
    page, others, complaints = open_file(offline, path)

    assert path.name == "in-fp32-1-report.html"
    assert (others, complaints) == ([], [])
    expect(page.get_by_role("heading", name="It learned it: 0 of 1 → 1 of 1 right")).to_be_visible()
    expect(page.get_by_role("img", name="Loss (nats/token)")).to_be_visible()
    expect(page.get_by_role("link")).to_have_count(0)
    assert violations(page) == []


def test_saved_report_of_comparison_opens_offline(
    online: Page, offline: BrowserContext, tmp_path: Path
) -> None:
    online.goto("/compare?runs=1,2")
    online.locator("#export > summary").click()
    online.get_by_role("link", name="Report", exact=True).click()
    path = save(online, tmp_path)
    page, others, complaints = open_file(offline, path)

    assert path.name == "comparison-1-2-report.html"
    assert (others, complaints) == ([], [])
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    assert "taken" not in page.title()
    assert violations(page) == []


def test_report_follows_theme_on_screen_and_is_light_on_paper(
    offline: BrowserContext, online: Page, tmp_path: Path
) -> None:
    online.goto("/runs/1/report.html")
    page, _others, _complaints = open_file(offline, save(online, tmp_path))
    colours = []
    for scheme, media in (("light", "screen"), ("dark", "screen"), ("dark", "print")):
        page.emulate_media(color_scheme=scheme, media=media)  # type: ignore[arg-type] # its words
        colours.append(background(page))

    assert colours[0] != colours[1]
    assert colours[2] == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")
