"""The answers that a run learns from, on its page and over the API."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.protocols.events import AlarmRaised, Failed
from studio.protocols.rollouts import AnswerRecord, GroupRecord, Stage
from studio.protocols.run_dir import RunDir
from studio.services.runs import attempts, runs, states
from studio.settings import Settings
from tests.support.factories import make_finished_run, make_run, make_running
from tests.support.page_reader import Node, parse_page

LONG = "word " * 1000
MINUS = "\N{MINUS SIGN}"


def answer(reward: float | None, text: str, **changes: Any) -> AnswerRecord:  # noqa: ANN401 -- any field
    values: dict[str, Any] = {"parts": {}, "messages": [], "tokens": 3, "is_cut_off": False}
    return AnswerRecord(reward=reward, text=text, **values | changes)


def group(
    step: int, row: int, *answers: AnswerRecord, stage: Stage = "training", prompt: str = ""
) -> GroupRecord:
    return GroupRecord(
        step=step, stage=stage, row=row, prompt=prompt or f"Question {row}", answers=[*answers]
    )


GROUPS = (
    group(0, 9, answer(0.2, "Untrained."), stage="validation"),
    group(1, 1, answer(0.4, "Early."), answer(0.4, "Early, too.")),
    group(
        2,
        3,
        answer(0.25, "Half.", parts={"exact": 0.0, "similar": 0.5}),
        answer(0.75, "Good <b>one</b>.", tokens=12),
        answer(None, "", messages=["The program raised an error: oops."]),
    ),
    group(2, 4, answer(0.5, LONG, tokens=99, is_cut_off=True), answer(0.5, "Same."), prompt=LONG),
)


def write(settings: Settings, *groups: GroupRecord, run: int = 1) -> None:
    folder = RunDir(settings.runs / str(run))
    folder.root.mkdir(parents=True, exist_ok=True)
    with folder.rollouts.open("a", encoding="utf-8") as file:
        file.writelines(one.to_line() for one in groups)


@pytest.fixture
def run(engine: Engine, settings: Settings) -> None:
    """Make a run that learns from its answers, at its second step."""
    with unit_of_work(engine) as db:
        make_running(db, method="grpo")
    write(settings, *GROUPS)


def shown(client: TestClient, query: str = "") -> Node:
    answer = client.get(f"/runs/1/rollouts{query}")
    assert answer.status_code == 200
    return parse_page(answer.text).one(id="rollouts")


def texts(section: Node) -> list[list[str]]:
    """Return the cells of each row of the table."""
    table = section.one("table", class_="scored")
    return [
        [cell.text for cell in (*row.all("th"), *row.all("td"))]
        for body in table.all("tbody")
        for row in body.all("tr")
    ]


@pytest.mark.usefixtures("run")
def test_only_runs_that_learn_from_answers_have_the_tab(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    tabs = [
        [link.text for link in parse_page(client.get(path).text).one("nav", class_="tabs").all("a")]
        for path in ("/runs/1", "/runs/2")
    ]
    answer = client.get("/runs/2/rollouts")

    assert ["Scored answers" in one for one in tabs] == [True, False]
    assert tabs[0].index("Scored answers") == tabs[0].index("Answers") + 1
    assert answer.status_code == 404
    assert "Only runs of reinforcement learning" in answer.text


@pytest.mark.usefixtures("run")
def test_newest_step_is_shown_with_scores_parts_and_errors(client: TestClient) -> None:
    section = shown(client)
    rows = texts(section)

    assert section.one("output").text == "Step 2"
    assert "5 answers to 2 prompts · mean score 0.5" in section.text
    assert "1 prompt whose answers score alike · 1 cut off · 1 without a score" in section.text
    assert rows[0] == ["Question 3 Row 3 · mean score 0.5 · 0.25 to 0.75"]
    assert rows[1] == [f"0.25 {MINUS}0.25 exact 0 · similar 0.5", "Half.", "3 tokens"]
    assert rows[2] == ["0.75 +0.25", "Good <b>one</b>.", "12 tokens"]
    assert rows[3] == ["no score", "(nothing) The program raised an error: oops.", "3 tokens"]
    assert rows[5][2] == "99 tokens cut off"
    assert rows[4][0].endswith("All score alike: nothing is learned here")


@pytest.mark.usefixtures("run")
def test_bars_tell_the_answers_to_a_prompt_apart(client: TestClient) -> None:
    bars = shown(client).all("svg", class_="arrived")

    lengths = [bar.all("rect")[1].attributes["width"] for bar in bars]
    sides = [bar.attributes["class"].split()[1:] for bar in bars]
    assert lengths == ["25.0", "75.0", "50.0", "50.0"]
    assert sides == [["worse"], ["better"], [], []]


@pytest.mark.usefixtures("run")
def test_bars_have_the_range_of_the_scores(client: TestClient, settings: Settings) -> None:
    write(settings, group(3, 1, answer(-3.0, "Bad."), answer(5.0, "Good.")))

    bars = shown(client).all("svg", class_="arrived")
    assert [bar.all("rect")[1].attributes["width"] for bar in bars] == ["0.0", "100.0"]


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("sort", "first", "title"),
    [
        ("row", "Half.", "In order"),
        ("best", "Good <b>one</b>.", "Best first"),
        ("worst", "(nothing)", "Worst first"),
        ("longest", "word", "Longest first"),
        ("nonsense", "Half.", "In order"),
    ],
)
def test_answers_are_sorted(client: TestClient, sort: str, first: str, title: str) -> None:
    section = shown(client, f"?sort={sort}")
    orders = section.one("nav", **{"aria-label": "Order of the answers"})

    assert texts(section)[1][1].startswith(first)
    assert orders.one("a", **{"aria-current": "true"}).text == title


@pytest.mark.usefixtures("run")
def test_long_texts_fold(client: TestClient) -> None:
    section = shown(client)

    assert len(section.all("details", class_="rest")) == 2
    assert section.text.count("1,000 more characters") == 2


@pytest.mark.usefixtures("run")
def test_steps_and_stages_are_links(client: TestClient) -> None:
    newest, first = shown(client), shown(client, "?step=1")
    validation = shown(client, "?stage=validation")

    assert [link.text for link in newest.one("nav", **{"aria-label": "Steps"}).all("a")] == [
        "First",
        "Previous",
    ]
    assert "Moves on to newer steps by itself." in newest.text
    assert newest.one("a", rel="prev").attributes["href"] == (
        "/runs/1/rollouts?stage=training&step=1&sort=row"
    )
    assert [link.text for link in first.one("nav", **{"aria-label": "Steps"}).all("a")] == [
        "Next",
        "Newest",
    ]
    # A link to the newest step follows the run.
    assert first.one("a", rel="next").attributes["href"] == (
        "/runs/1/rollouts?stage=training&sort=row"
    )
    assert texts(first)[1][1] == "Early."
    assert texts(validation)[1][1] == "Untrained."


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("query", "step"),
    [("?step=99", 2), ("?step=0", 1), ("?at=0", 1), ("?at=7", 2), ("?stage=x&step=1", 1)],
)
def test_step_that_is_not_there_is_replaced_by_the_nearest(
    client: TestClient, query: str, step: int
) -> None:
    assert shown(client, query).one("output").text == f"Step {step}"


@pytest.mark.usefixtures("run")
def test_page_follows_a_run_that_trains(client: TestClient, settings: Settings) -> None:
    """Unless it was moved to an earlier step."""
    newest, earlier = shown(client), shown(client, "?step=1")
    write(settings, group(3, 5, answer(1.0, "Later.")))
    told = [
        {one.attributes["name"]: one.attributes["value"] for one in section.all(type="hidden")}
        for section in (newest, earlier)
    ]

    pages = [client.get("/runs/1/parts/rollouts", params=fields) for fields in told]

    assert [texts(parse_page(page.text))[1][1] for page in pages] == ["Later.", "Early."]
    assert [page.headers["HX-Replace-Url"] for page in pages] == [
        "/runs/1/rollouts?stage=training&sort=row",
        "/runs/1/rollouts?stage=training&step=1&sort=row",
    ]


@pytest.mark.usefixtures("run")
def test_more_prompts_are_a_click_away(client: TestClient, settings: Settings) -> None:
    write(settings, *(group(3, row, *[answer(0.5, "A.")] * 16) for row in range(1, 11)))

    first = shown(client)
    more = first.one("a", id="rollouts-more")
    second = parse_page(client.get(more.attributes["hx-get"]).text)

    assert more.text == "Show 4 more prompts"
    assert [len(section.all("th", scope="rowgroup")) for section in (first, second)] == [4, 8]
    assert second.one("a", id="rollouts-more").text == "Show 2 more prompts"


@pytest.mark.usefixtures("run")
def test_alarm_offers_a_fix_and_the_answers_of_its_step(client: TestClient, engine: Engine) -> None:
    alarms = [
        AlarmRaised(code=code, message="Something is wrong.", step=step)
        for code, step in (("answers_cut_off", 1), ("sampling_differs", 2))
    ]
    with unit_of_work(engine) as db:
        attempts.apply_events(db, runs.get(db, 1), alarms, 1)
    section = parse_page(client.get("/runs/1/numerics").text).one(id="numerics")
    link = section.one("ul", class_="alarms").one("a")
    offered = [form.one("button").text for form in section.all("form")]

    assert texts(shown(client, link.attributes["href"].partition("rollouts")[2]))[1][1] == "Early."
    assert "Run again with a max answer length of 512 tokens" in offered


def test_failure_leads_to_the_answers(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    failed = Failed(code="grader_failed", message="None could be scored.")
    with unit_of_work(engine) as db:
        for _ in range(2):
            attempts.fail(db, make_running(db, method="grpo"), failed)
    write(settings, *GROUPS)

    links = [
        [link.attributes["href"] for link in parse_page(page.text).one(id="failure").all("a")]
        for page in (client.get("/runs/1"), client.get("/runs/2"))
    ]
    assert ["/runs/1/rollouts" in links[0], "/runs/2/rollouts" in links[1]] == [True, False]


def state(db: Session, status: RunStatus, step: int) -> None:
    run = make_run(db, method="rloo")
    for one in (RunStatus.STARTING, RunStatus.RUNNING, status):
        states.move(db, run, one)
    run.step = step


@pytest.mark.parametrize(
    ("status", "step", "words"),
    [
        (RunStatus.RUNNING, 0, "appear here, with their scores"),
        (RunStatus.FAILED, 0, "This run ended before it kept any answers."),
        (RunStatus.FAILED, 7, "The file with the scored answers of this run was deleted."),
    ],
)
def test_page_says_why_it_is_empty(
    client: TestClient, engine: Engine, status: RunStatus, step: int, words: str
) -> None:
    with unit_of_work(engine) as db:
        state(db, status, step)

    assert words in shown(client).text


@pytest.mark.usefixtures("run")
def test_program_reads_a_step(client: TestClient) -> None:
    newest = client.get("/api/v1/runs/1/rollouts?sort=best&limit=1").json()
    rest = client.get(f"/api/v1/runs/1/rollouts?sort=best&after={newest['next_after']}").json()
    validation = client.get("/api/v1/runs/1/rollouts?stage=validation&step=0").json()

    (first,) = newest["data"]
    assert [one["reward"] for one in first["answers"]] == [0.75, 0.25, None]
    assert first["answers"][1] == {
        "text": "Half.",
        "reward": 0.25,
        "parts": {"exact": 0.0, "similar": 0.5},
        "messages": [],
        "tokens": 3,
        "is_cut_off": False,
    }
    assert (first["step"], first["row"], first["mean"]) == (2, 3, 0.5)
    assert ([one["row"] for one in rest["data"]], rest["has_more"]) == ([4], False)
    assert validation["data"][0]["prompt"] == "Question 9"


@pytest.mark.usefixtures("run")
def test_program_pages_through_steps(client: TestClient) -> None:
    first = client.get("/api/v1/runs/1/rollouts/steps?limit=1").json()
    second = client.get(f"/api/v1/runs/1/rollouts/steps?after={first['next_after']}").json()

    assert first == {"data": [{"step": 1, "prompts": 1}], "has_more": True, "next_after": 1}
    assert second == {"data": [{"step": 2, "prompts": 2}], "has_more": False, "next_after": None}


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("rollouts?step=3", 404),
        ("rollouts?stage=validation&step=2", 404),
        ("rollouts?stage=test", 422),
        ("rollouts?sort=shortest", 422),
        ("rollouts?step=-1", 422),
        ("rollouts?page=2", 422),
    ],
)
def test_program_is_told_what_is_wrong(client: TestClient, path: str, status: int) -> None:
    answer = client.get(f"/api/v1/runs/1/{path}")

    assert (answer.status_code, bool(answer.json()["error"]["message"])) == (status, True)


def test_run_of_another_method_has_none(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
        make_finished_run(db, method="rloo")
    paths = ("rollouts", "rollouts/steps", "rollouts.jsonl")
    supervised = [client.get(f"/api/v1/runs/1/{path}") for path in paths]
    reinforced = [client.get(f"/api/v1/runs/2/{path}") for path in paths]

    assert [one.status_code for one in supervised] == [404, 404, 404]
    assert [one.status_code for one in reinforced] == [200, 200, 404]
    assert [one.json()["data"] for one in reinforced[:2]] == [[], []]


@pytest.mark.usefixtures("run")
def test_file_is_downloaded_up_to_its_last_whole_line(
    client: TestClient, settings: Settings
) -> None:
    with RunDir(settings.runs / "1").rollouts.open("a") as file:
        file.write('{"step": 3, "stage": "tra')
    link = parse_page(client.get("/runs/1/files").text).one(
        "a", href="/api/v1/runs/1/rollouts.jsonl"
    )
    download = client.get(link.attributes["href"])

    assert [json.loads(line)["row"] for line in download.text.splitlines()] == [9, 1, 3, 4]
    assert 'filename="run-1-scored-answers.jsonl"' in download.headers["content-disposition"]


@pytest.mark.usefixtures("run")
def test_deleted_run_takes_its_answers_along(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        states.move(db, runs.get(db, 1), RunStatus.FAILED)

    assert client.delete("/api/v1/runs/1").status_code == 204
    assert not RunDir(settings.runs / "1").rollouts.exists()
