"""What pages offer: to each person only what the door would let them do."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlmodel import Session, col, select
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Asked

from studio.db.accounts import Role
from studio.db.column_types import now
from studio.db.endpoints import Endpoint
from studio.db.owners import Actor, acting_as
from studio.db.session import unit_of_work
from studio.db.states import EndpointState, RunStatus, SweepStatus, TaskStatus
from studio.db.summaries import SavedComparison, SavedView
from studio.db.tables import DatasetVersion, Model, QuarantinedGpu, Run, Study, Sweep, Worker
from studio.db.tasks import Export, LoadedModel, Task
from studio.db.trackers import TrackedRun
from studio.graders.schema import parse_grader
from studio.intake.row_formats.schema import Turn, make_turn
from studio.protocols.events import Event, Failed, Finished, Sampled
from studio.protocols.run_dir import RunDir
from studio.recipe.search_space import SEARCH_SPACE_ADAPTER
from studio.services import experiments
from studio.services.datasets import versions
from studio.services.evaluations import benchmarks
from studio.services.evaluations.benchmarks import BenchmarkRequest
from studio.services.exports import exports
from studio.services.feedback import feedback
from studio.services.feedback.feedback import NewFeedback
from studio.services.graders import trials
from studio.services.graders.trials import TrialRequest
from studio.services.hardware import gpu_health
from studio.services.operations.home import open_home
from studio.services.runs import attempts, states
from studio.services.tasks import tasks
from studio.services.workers import workers
from studio.settings import Settings
from studio.web.auth.route_table import RouteTable
from studio.web.middleware.auth_middleware import AuthMiddleware
from studio.web.middleware.request_metrics import RequestMetrics, RequestMetricsMiddleware
from tests.fakes.exporter import MEASURED
from tests.support import evaluated_runs, pages
from tests.support.factories import MACHINES, make_finished_run, make_recipe, make_run, make_running
from tests.support.page_reader import Node, parse_page
from tests.support.template_homes import TemplateHome
from tests.support.visitors import Visitors, make_visitors
from tests.unit.graders.test_schema import CHECK
from tests.unit.weights import safetensors_folders

pytestmark = pytest.mark.slow

WAYS = RouteTable()
PAGES = [way for way in WAYS if not way.template.startswith(("/api/", "/v1/", "/metrics"))]
Offer = tuple[str, str]
"""A method and an address."""
Offers = dict[str, dict[Offer, str]]
"""What each person is offered, and on which page."""

LOOKED_AT = (
    *("/", "/?q=is:trashed", "/queue", "/compare", "/compare?runs=4,5"),
    *("/compare?runs=4,5&saved=1", *(f"/runs/{number}" for number in (1, 2, 3, 4, 6, 7, 8))),
    *("/runs/5/evaluation", "/runs/5/parts/evaluation", "/feedback"),
    *("/runs/5/parts/judgements?number=1", "/runs/5/evaluations/1/vote"),
    "/runs/5/parts/benchmarks",
    "/runs/5/evaluation?left=1&version=2&before=1",
    *("/runs/9/rollouts", "/runs/9/rollouts?step=1", "/runs/9/parts/rollouts"),
    *("/runs/4/answers", "/runs/5/files", "/runs/6/details", "/runs/6/numerics", "/runs/4/charts"),
    *("/runs/4/words", "/new", "/experiments/1", "/experiments/9"),
    *("/sweeps", "/sweeps/1", "/sweeps/2", "/sweeps/new?from=run:4"),
    *("/reports/precision", "/reports/precision/1", "/reports/precision/new?from=run:4"),
    *("/datasets", "/datasets/2", "/datasets/2/mapping", "/datasets/2/stats"),
    *("/datasets/2?version=1", "/datasets/3/mapping", "/datasets?way=url", "/datasets/2/sight"),
    *("/models", *(f"/models/{number}" for number in (1, 2, 3, 4)), "/chores/1", "/chores/2"),
    *("/settings", "/settings/access", "/settings/people", "/settings/secrets", "/settings/log"),
    *("/palette", "/help/knobs/precision", "/help/tour", "/help", "/help/shortcuts", "/docs"),
    *("/runs", "/runs/2/line", "/runs/4/row", "/runs/1/parts/wait", "/runs/4/parts/answers"),
    *("/runs/4/parts/numerics", "/runs/4/parts/history", "/runs/4/broken?step=1"),
    *("/runs/4/chat", "/runs/4/chat/wait", "/runs/4/exports", "/runs/4/report.html"),
    *("/compare/report.html?runs=4,5", "/completions?q=is", "/new/hub?name=far"),
    *("/new/calibrated", "/new/measured", "/queue/others", "/worker", "/hardware"),
    *("/settings/notices", "/failures", "/numbers"),
    *("/playground", "/playground?model=base:5&model=run:5&model=run:3", "/playground/wait"),
    *("/playground/models", "/playground/column?model=run:5&key=c1"),
    *("/playground/prompts?model=run:5", "/graders", "/graders/trials/3", "/endpoints"),
    *("/endpoints/list", "/endpoints/new", "/endpoints/new?from=run:5"),
    "/endpoints/1/log",
    *("/runs/5/parts/trackers", "/new/import"),
)
NO_PAGES = (
    "/experiments/1/script.py",
    *("/openapi.json", "/runs.csv", "/compare/export?runs=4,5", "/comparisons/1/export"),
    *("/datasets/2/versions/1/rows.jsonl", "/comparisons/1", "/new/draft", "/datasets/2/built"),
    *("/datasets/imports/1/done", "/datasets/2/stats/counted", "/models/landed"),
    *("/datasets/2/versions/1/rows.zip", f"/datasets/2/versions/1/images/{'0' * 64}"),
    f"/datasets/2/mapping/images/{'0' * 64}",
    *("/models/2/code", "/login", "/login/oidc", "/login/oidc/done"),
)
"""Files, redirects, and addresses that return no page to people who are signed in."""
OF_DEVELOPERS = {"/style"}
"""Pages that only `STUDIO_DEVELOPMENT` shows, with nothing of the database."""
CODE = {"AutoModelForCausalLM": "own.Own"}
LOOKING = ("viewer", "owner", "another member", "administrator")
ROWS = b'{"prompt": "Ring it", "completion": "Yes."}\n' * 3


def fill(db: Session, settings: Settings) -> None:
    """Make some of each thing, in each state that something can be done about."""
    make_run(db)
    make_running(db)
    states.move(db, make_running(db), RunStatus.PAUSED)
    for step, precision in ((1, "bf16"), (2, "fp32")):
        done = make_finished_run(db, adapter={"kind": "lora"}, precision=precision)
        done.metrics = done.metrics | {"eval_loss": 1.0 + step / 1000}
        done.tags, done.notes = ["good"], "Warmer.\nShorter."
        done.resolved = {"parameters": 1_001_000, "trainable_parameters": 1000}
        RunDir(settings.runs / str(done.id)).artifacts.mkdir(parents=True)
        words = {"prompt": "Q?", "reference": "R", "answer": f"A{step}"}
        told: list[Event] = [Sampled(stage="after", step=10, position=0, **words)]
        attempts.apply_events(db, done, told, 2000)
    failed_run = make_running(db)
    failed_run.checkpoint_step = 5
    attempts.fail(db, failed_run, Failed(code="model_not_found", message="It is gone."))
    make_finished_run(db).deleted_at = now()
    # An experiment of its own: run 8 scores texts.
    make_finished_run(db, "scores").recipe = make_recipe(method="reward")
    _add_groups(db)
    _add_places(db)
    asked: list[Turn] = [make_turn("user", "Q?")]
    feedback.add(db, NewFeedback(prompt=asked, answer="A", said_in="chat", run_id=4))
    _add_tasks(db, settings)
    _add_worker(db)
    db.add(LoadedModel(worker="w", model="starter"))
    experiments.create(db, "bare", make_recipe())
    pages.add_scored_answers(settings.runs, make_finished_run(db, "learner", method="grpo"))
    db.add(Model(name="far", kind="hub", location="org/far"))
    _export(db, settings)


def _add_worker(db: Session) -> None:
    """Add a worker whose second GPU is in quarantine."""
    (gpu,) = MACHINES["t4"].gpus
    gpus = [replace(gpu, index=i, uuid=f"GPU-{i}", capability=(8, 0)) for i in (0, 1)]
    machine = replace(MACHINES["t4"], gpus=tuple(gpus), gpu_faults={1: gpu_health.REASON})
    seen = workers.HARDWARE_ADAPTER.dump_python(machine, mode="json")
    beat_at = now() + timedelta(hours=1)
    db.add(Worker(name="w", pid=1, slots=2, beat_at=beat_at, hardware=seen))
    db.add(QuarantinedGpu(gpu="GPU-1", reason=gpu_health.REASON))


def _add_tasks(db: Session, settings: Settings) -> None:
    """Add a task that waits, one that has failed, and the trial of a grader."""
    failed: dict[str, Any] = {"status": TaskStatus.FAILED, "error_message": "It is gone."}
    db.add(Task(kind="look", subject="dataset:9"))
    db.add(Task(kind="look", subject="dataset:9", **failed))
    db.flush()
    asked_model = TrialRequest(dataset="starter", source="model", model="starter")
    trials.start(db, trials.plan(db, settings, parse_grader(CHECK), asked_model))


def _add_groups(db: Session) -> None:
    """Add what is about several runs, and an export that waits."""
    db.add_all([Export(run_id=4, kind="merged", dtype="bfloat16")])
    recipe = make_recipe()
    space = SEARCH_SPACE_ADAPTER.validate_python({"seed": {"values": [1, 2]}})
    about: dict[str, Any] = {"name": "x", "recipe": recipe, "space": space, "count": 2}
    for status in (SweepStatus.RUNNING, SweepStatus.STOPPED):
        db.add(Sweep(experiment_id=1, strategy="grid", status=status, **about))
    db.add(Study(experiment_id=1, name="x", modes=["fp32", "bf16"], seeds=[1]))
    db.add_all([SavedComparison(name="x", query="runs=4,5"), SavedView(name="x", query="q=x")])


def _add_places(db: Session) -> None:
    """Add an endpoint that answers, one that does not, and a tracker that fails."""
    for name, state in (("up", EndpointState.READY), ("down", EndpointState.STOPPED)):
        db.add(Endpoint(name=name, engine="llama.cpp", run_id=5, state=state))
    db.add(TrackedRun(run_id=5, tracker="csv", key="csv", failures=1, error="The disk is full."))


def _export(db: Session, settings: Settings) -> None:
    """Export a model that others may start from."""
    task = exports.create(db, 5, "bfloat16", None, settings.runs)
    tasks.start_work(task)
    exports.apply_events(task, [Finished(metrics=MEASURED)], 1)
    evaluated_runs.lay_out(db, settings, db.get_one(Run, 5))
    evaluation = evaluated_runs.evaluate(db, settings, 5, ["No."], ["Yes."], ["Yes."])
    evaluated_runs.judge(db, settings, evaluation, [("B", "A")])
    benchmarks.create(db, settings, 5, BenchmarkRequest(dataset="starter"))
    files = RunDir(settings.runs / "5").export(task.id or 0).files
    files.mkdir(parents=True)
    (files / "README.md").write_text("# A card\n", encoding="utf-8")


@pytest.fixture(scope="module")
def home(furnished: TemplateHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitors]:
    """Return a studio where all but the starter's is ann's."""
    settings = furnished.copy(
        tmp_path_factory.mktemp("offered") / "home",
        allowed_hosts="testserver",
        hub_endpoint="http://127.0.0.1:9",
        webhook_url=SecretStr("http://127.0.0.1:9/hook"),
    )
    engine = open_home(settings)
    made = make_visitors(engine, settings, "accounts")
    ann = Actor(name="ann", account_id=made.account("ann", Role.MEMBER), is_limited=True)
    with acting_as(ann), unit_of_work(engine) as db:
        fill(db, settings)
    browser = made.person("ann", Role.MEMBER)
    for name, draft in (("one.jsonl", "false"), ("two.jsonl", "true")):
        sent = browser.post("/api/v1/datasets", files={"file": (name, ROWS)}, data={"draft": draft})
        assert sent.status_code in {200, 201}, sent.text
    _act(browser)
    _administer(made.person("root", Role.ADMINISTRATOR), settings.home)
    with unit_of_work(engine) as db:
        _first_version(db).findings = None
        for number in (4, 5):
            db.get_one(Run, number).dataset_version_id = versions.get(db, 2, 2).id
    yield made
    engine.dispose()


def _first_version(db: Session) -> DatasetVersion:
    chosen = select(DatasetVersion).where(DatasetVersion.dataset_id == 2)
    return db.exec(chosen.order_by(col(DatasetVersion.number))).all()[0]


def _act(browser: TestClient) -> None:
    """Leave a row out, so that there are two versions, and make a token."""
    for address, sent in (
        ("/api/v1/datasets/2/exclude", {"rows": [2]}),
        ("/api/v1/tokens", {"name": "ci"}),
    ):
        answer = browser.post(address, json=sent)
        assert answer.status_code == 201, (address, answer.text)


def _administer(browser: TestClient, folder: Path) -> None:
    """Set a secret, and bring two models with code of their own, one of which may run it."""
    for name in ("coded", "allowed"):
        path = safetensors_folders.write(folder / name, {"a": ("F32", [1.0, 2.0])}, auto_map=CODE)
        (path / "own.py").write_text("print('mine')")
        brought = browser.post("/models/folder", data={"folder": str(path)})
        assert brought.status_code == 303, brought.text
    here = brought.headers["location"]
    revision = browser.get(f"/api/v1{here}").json()["code"]["revision"]
    for address, sent in (
        (f"{here}/consent", {"revision": revision}),
        ("/settings/secrets/smtp_url", {"value": "smtp://mail"}),
    ):
        answer = browser.post(address, data=sent)
        assert answer.status_code == 303, (address, answer.text)


@pytest.fixture(scope="module")
def people(home: Visitors) -> dict[str, TestClient]:
    return {
        "viewer": home.person("vera", Role.VIEWER),
        "owner": home.person("ann", Role.MEMBER),
        "another member": home.person("bob", Role.MEMBER),
        "administrator": home.person("root", Role.ADMINISTRATOR),
    }


@pytest.fixture(scope="module")
def offers(people: dict[str, TestClient]) -> Offers:
    """Return each thing that pages offer to each person, with a page that does."""
    return {who: all_offered(people[who]) for who in LOOKING}


def at_the_door(home: Visitors, like: TestClient) -> TestClient:
    """Return the same person before a door behind which whoever is let in hears 204."""

    async def behind(scope: Asked, receive: Receive, send: Send) -> None:
        await Response(status_code=204)(scope, receive, send)

    door = RequestMetricsMiddleware(AuthMiddleware(behind, WAYS, home.settings), RequestMetrics())

    async def before(scope: Asked, receive: Receive, send: Send) -> None:
        await door({**scope, "app": home.app}, receive, send)

    return TestClient(before, cookies=like.cookies)


def offered(there: str, html: str) -> set[Offer]:
    """Return what a page lets one do by its links, forms, buttons, and parts that load."""
    page = parse_page(html)
    links = {one.attributes.get("href", "#") for one in page.all("a")}
    found = {("GET", link) for link in links if not link.startswith("#")}
    for form in page.all("form"):
        method = form.attributes.get("method", "get").upper()
        found.add((method, form.attributes.get("action", there)))
        found |= {(method, address) for address in _redirected(form, page)}
    for node in page.all():
        for name, value in node.attributes.items():
            verb = name.removeprefix("hx-").upper()
            if name != verb.lower() and verb in {"GET", "POST", "PUT", "PATCH", "DELETE"}:
                found.add((verb, value))
        sent_by_scripts = {
            "data-api",
            "data-send",
            "data-load",
            "data-scores",
        } & node.attributes.keys()
        found |= {("POST", node.attributes[name]) for name in sent_by_scripts}
    ours = {(method, urlsplit(urljoin(there, address))) for method, address in found}
    return {
        (method, to.path)
        for method, to in ours
        if not to.netloc and not to.scheme and not to.path.startswith("/static/")
    }


def _redirected(form: Node, page: Node) -> list[str]:
    """Return where buttons of a form send it instead, inside of it or beside it."""
    name = form.attributes.get("id")
    beside = [one for one in page.all("button") if name and one.attributes.get("form") == name]
    buttons = [*form.all("button"), *beside]
    return [
        one.attributes["formaction"]
        for one in buttons
        if "formaction" in one.attributes and one.attributes.get("form") in {None, name}
    ]


def all_offered(person: TestClient) -> dict[Offer, str]:
    found: dict[Offer, str] = {}
    for there in LOOKED_AT:
        answer = person.get(there)
        assert answer.status_code in {200, 403}, (there, answer.text)
        found |= dict.fromkeys(offered(there, answer.text), there)
    return found


@pytest.mark.parametrize("who", LOOKING)
def test_pages_offer_only_permitted_actions(
    home: Visitors, people: dict[str, TestClient], offers: Offers, who: str
) -> None:
    door = at_the_door(home, people[who])

    refused = {
        offer: page
        for offer, page in offers[who].items()
        if door.request(*offer).status_code != 204
    }

    assert refused == {}


def test_every_page_is_looked_at() -> None:
    pages = {way.template for way in PAGES if way.method == "GET"}

    looked_at = {WAYS.find("GET", urlsplit(address).path).template for address in LOOKED_AT}
    others = {WAYS.find("GET", urlsplit(address).path).template for address in NO_PAGES}

    assert pages - looked_at == others | OF_DEVELOPERS


@pytest.mark.parametrize("address", NO_PAGES)
def test_other_addresses_show_no_page(people: dict[str, TestClient], address: str) -> None:
    answer = people["administrator"].get(address)

    assert answer.status_code != 200 or "text/html" not in answer.headers["content-type"]


CHANGES = {
    *("/chores/{chore_id}/again", "/chores/{chore_id}/cancel", "/comparisons"),
    *("/comparisons/{number}", "/comparisons/{number}/delete", "/datasets"),
    *("/datasets/imports", "/datasets/{dataset_id}/delete", "/datasets/{dataset_id}/mapping"),
    *("/datasets/{dataset_id}/versions/{number}/delete", "/experiments/{experiment_id}/delete"),
    "/datasets/{dataset_id}/versions/{number}/use",
    *("/datasets/{dataset_id}/name", "/experiments/{experiment_id}"),
    *("/experiments/{experiment_id}/runs", "/models/download", "/models/{model_id}/remove"),
    *("/new", "/new/sweep", "/queue/loaded/stop", "/queue/{run_id}/cancel"),
    *("/queue/{run_id}/hold", "/queue/{run_id}/move", "/queue/{run_id}/priority"),
    *("/runs/{run_id}/benchmarks", "/runs/{run_id}/benchmarks/{benchmark_id}/delete"),
    *("/runs/{run_id}/evaluations", "/runs/{run_id}/evaluations/{evaluation_id}/delete"),
    "/runs/{run_id}/evaluations/{evaluation_id}/judgements",
    "/runs/{run_id}/evaluations/{evaluation_id}/judgements/{judgement_id}/delete",
    "/runs/{run_id}/evaluations/{evaluation_id}/vote",
    "/runs/{run_id}/evaluations/{evaluation_id}/feedback",
    "/runs/{run_id}/evaluations/{evaluation_id}/leave-out",
    *("/feedback/datasets", "/feedback/{feedback_id}/delete", "/graders/train", "/graders/try"),
    *("/endpoints/new", "/endpoints/{endpoint_id}/start", "/endpoints/{endpoint_id}/stop"),
    *("/endpoints/{endpoint_id}/delete", "/runs/{run_id}/trackers"),
    *("/runs/{run_id}/trackers/{key}/retry", "/runs/{run_id}/trackers/{key}/delete"),
    "/reports/precision/new",
    *("/reports/precision/{study_id}/delete", "/runs/bulk", "/runs/{run_id}/again"),
    *("/runs/{run_id}/cancel", "/runs/{run_id}/delete", "/runs/{run_id}/exports"),
    *("/runs/{run_id}/exports/{export_id}/delete", "/runs/{run_id}/keep", "/runs/{run_id}/pause"),
    *("/runs/{run_id}/exports/{export_id}/pushes", "/runs/{run_id}/restart"),
    *("/runs/{run_id}/restore", "/runs/{run_id}/resume"),
    *("/runs/{run_id}/trash", "/runs/{run_id}/words", "/samples/{sample_id}/rating"),
    *("/sweeps/new", "/sweeps/{sweep_id}/{verb}", "/views", "/views/{view_id}/delete"),
}
"""What stands on the pages that are looked at, for whoever may do it."""


OFFERED_LATER = {"/new/lengths"}
"""What the form offers once it knows the tensors of a model, which none has here."""


def changes(found: dict[Offer, str]) -> set[str]:
    """Return the routes that change something, and that somebody is offered."""
    ways = {WAYS.find(method, path) for method, path in found if method != "GET"}
    return {way.template for way in ways if way.permission in {"submit", "manage", "admin"}}


def test_owner_is_offered_every_change(offers: Offers) -> None:
    assert CHANGES - changes(offers["owner"]) == set()


def test_every_change_is_offered_to_somebody(offers: Offers) -> None:
    every = {
        way.template
        for way in PAGES
        if way.method != "GET" and way.permission in {"submit", "manage", "admin"}
    }

    assert every - set().union(*(changes(offers[who]) for who in LOOKING)) == OFFERED_LATER


def test_viewer_is_offered_no_changes(offers: Offers) -> None:
    assert changes(offers["viewer"]) == set()


def test_members_can_copy_but_not_change_runs_of_others(offers: Offers) -> None:
    found = changes(offers["another member"])

    assert {"/new", "/runs/{run_id}/again", "/runs/{run_id}/exports"} <= found
    assert not {"/runs/{run_id}/cancel", "/runs/{run_id}/words", "/comparisons/{number}"} & found


def test_viewer_sees_name_tags_and_notes_without_edit_form(people: dict[str, TestClient]) -> None:
    told = {who: parse_page(people[who].get("/runs/4/words").text) for who in ("viewer", "owner")}

    shown = [one.text for one in told["viewer"].all(class_="wrap")]
    assert (shown[:2], shown[2].split()) == (["first try", "good"], ["Warmer.", "Shorter."])
    assert told["viewer"].all("input") == told["viewer"].all("form") == []
    assert told["owner"].one("input", name="name").attributes["value"] == "first try"


def test_viewer_can_compare_runs(people: dict[str, TestClient]) -> None:
    page = parse_page(people["viewer"].get("/").text)

    form = page.one("form", id="bulk").attributes
    assert (form.get("method"), form["action"]) == (None, "/compare")


def test_pages_show_signed_in_user_and_role(people: dict[str, TestClient]) -> None:
    told = {
        who: parse_page(one.get("/").text).one("p", class_="who").text
        for who, one in people.items()
    }

    assert told == {
        "viewer": "vera, viewer",
        "owner": "ann, member",
        "another member": "bob, member",
        "administrator": "root, administrator",
    }


def test_forbidden_page_shows_signed_in_user(people: dict[str, TestClient]) -> None:
    refused = people["viewer"].get("/new")

    assert refused.status_code == 403
    page = parse_page(refused.text)
    assert page.one("p", class_="who").text == "vera, viewer"
    links = [link for menu in page.all("nav") for link in menu.all("a")]
    assert links
    assert [link.text for link in links if link.attributes["href"] == "/new"] == []
