"""Answers on the page: of runs side by side, of one run along its steps, rated."""

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.events import Sampled, SampleStage
from studio.services.runs import attempts
from tests.support.factories import make_finished_run
from tests.support.page_reader import Node, parse_page

HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
SAID = (("yes it is", "one two"), ("yes it was", "one two"))
"""What each of two runs says to each of two prompts."""


def sampled(position: int, answer: str, stage: SampleStage = "after", step: int = 9) -> Sampled:
    return Sampled(
        stage=stage,
        step=step,
        position=position,
        prompt=f"Q{position}?",
        reference="R",
        answer=answer,
    )


def two(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for number, said in enumerate(SAID, 1):
            told = [sampled(place, answer) for place, answer in enumerate(said)]
            attempts.apply_events(db, make_finished_run(db, f"try {number}"), told, 2000)


def shown(client: TestClient, query: str = "") -> Node:
    return parse_page(client.get(f"/compare?runs=1,2{query}").text).one(id="answers")


def rows(section: Node) -> list[list[str]]:
    """Return the prompts and the words of the answers to them."""
    return [
        [row.one("th").all(class_="words")[0].text, *(one.text for one in words(row))]
        for body in section.all("tbody")
        for row in body.all("tr")
    ]


def words(row: Node) -> list[Node]:
    return [cell.one(class_="words") for cell in row.all("td")]


def test_answers_are_diffed_against_baseline(client: TestClient, engine: Engine) -> None:
    two(engine)
    base, other = words(shown(client).all("tbody")[0].all("tr")[0])

    assert (base.text, base.all("ins"), base.all("del")) == ("yes it is", [], [])
    assert [(one.tag, one.text) for one in other.all()] == [("del", "is"), ("ins", "was")]


def test_answers_are_marked_right_or_wrong_instead_of_compared(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        for name, said in (("first", ("Grace.", "R")), ("second", ("R", "R"))):
            told = [sampled(place, answer) for place, answer in enumerate(said)]
            attempts.apply_events(db, make_finished_run(db, name), told, 2000)
    section = shown(client)

    assert [
        [mark.text for mark in row.all(class_="judged")] for row in section.one("tbody").all("tr")
    ] == [["✗ wrong", "✓ right"], ["✓ right", "✓ right"]]
    assert "1 of 2 right" in section.one("thead").text
    assert "2 of 2 right" in section.one("thead").text
    coloured = [*section.all(class_="better"), *section.all(class_="worse")]
    assert all("judged" in node.attributes["class"] for node in coloured)


def test_run_shows_how_many_answers_became_right(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        before = [sampled(place, "Grace.", "before", 0) for place in range(3)]
        after = [sampled(place, answer) for place, answer in enumerate(("R", "r", " R "))]
        attempts.apply_events(db, make_finished_run(db), [*before, *after], 2000)
    section = parse_page(client.get("/runs/1/answers").text).one(id="answers")

    assert section.one("strong").text == "0 of 3 right → 2 of 3 right"


def test_answers_without_reference_are_not_judged(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        told = [sampled(0, "R").model_copy(update={"reference": ""})]
        attempts.apply_events(db, make_finished_run(db), told, 2000)
    section = parse_page(client.get("/runs/1/answers").text).one(id="answers")

    assert section.all(class_="judged") == []
    assert "right" not in section.one("thead").text


def test_baseline_is_listed_first(client: TestClient, engine: Engine) -> None:
    two(engine)

    assert rows(shown(client, "&base=2"))[0][1:] == ["yes it was", "yes it was is"]


def test_differs_filter_keeps_only_differing_prompts(client: TestClient, engine: Engine) -> None:
    two(engine)
    section = shown(client, "&differs=1")

    assert [row[0] for row in rows(section)] == ["Q0?"]
    assert "1 of 2 prompts" in section.text


def test_prompts_and_answers_can_be_searched(client: TestClient, engine: Engine) -> None:
    two(engine)

    def found(sought: str) -> list[str]:
        return [row[0] for row in rows(shown(client, f"&find={sought}"))]

    assert [found(one) for one in ("Q1", "was YES", "zebra")] == [["Q1?"], ["Q0?"], []]


def test_empty_search_result_links_back(client: TestClient, engine: Engine) -> None:
    two(engine)

    section = shown(client, "&find=zebra&x=epoch")
    hrefs = [one.attributes["href"] for one in section.all("a") if one.text == "Show all"]
    assert hrefs == ["/compare?runs=1,2&x=epoch#answers"]


def test_blind_view_hides_run_names_and_marks(client: TestClient, engine: Engine) -> None:
    two(engine)
    section = shown(client, "&blind=1")

    assert [head.text for head in section.one("thead").all("th")] == [
        *("Prompt", "Answer A", "Answer B")
    ]
    assert section.all("ins") == section.all("del") == section.all(class_="judged") == []
    assert "try 1" not in section.text
    assert "data-of" not in {name for one in section.all() for name in one.attributes}


def test_blind_order_is_shuffled_by_seed(client: TestClient, engine: Engine) -> None:
    two(engine)
    orders = [[row[1] for row in rows(shown(client, f"&blind={seed}"))] for seed in range(8)]

    assert {order[0] for order in orders} == {"yes it is", "yes it was"}
    assert rows(shown(client, "&blind=3")) == rows(shown(client, "&blind=3"))


def test_answer_can_be_rated_in_place(client: TestClient, engine: Engine) -> None:
    two(engine)
    told = parse_page(client.post("/samples/1/rating", data={"score": "4"}, headers=HTMX).text)

    assert told.one("input", value="4", type="radio").attributes["checked"] == ""
    assert told.one(id="told").text == "Rated 4 of 5. Undo"
    assert told.one(id="mean-1").text == "rated 4.0 (n = 1)"
    assert (
        "Rating, 1 to 5 4" in parse_page(client.get("/compare?runs=1,2").text).one(id="finals").text
    )


def test_undo_restores_previous_score(client: TestClient, engine: Engine) -> None:
    two(engine)
    for score in ("4", "2"):
        told = parse_page(
            client.post("/samples/1/rating", data={"score": score}, headers=HTMX).text
        )

    undo = told.one(id="told").one("form")
    assert undo.attributes["action"] == "/samples/1/rating"
    assert undo.one("input").attributes["value"] == "4"


def test_blind_rating_hides_mean(client: TestClient, engine: Engine) -> None:
    two(engine)
    sent = {"score": "4", "blind": "1"}
    told = parse_page(client.post("/samples/1/rating", data=sent, headers=HTMX).text)

    assert told.all(id="mean-1") == []


def test_rating_without_javascript_redirects_back(client: TestClient, engine: Engine) -> None:
    two(engine)
    there = f"{client.base_url}/compare?runs=1,2"
    answer = client.post(
        "/samples/1/rating",
        data={"score": "4"},
        headers={"referer": there},
        follow_redirects=False,
    )

    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/compare?runs=1,2#answers",
    )


def test_rating_does_not_redirect_to_other_sites(client: TestClient, engine: Engine) -> None:
    two(engine)
    answer = client.post(
        "/samples/1/rating",
        data={"score": "4"},
        headers={"referer": "http://elsewhere.example/compare"},
        follow_redirects=False,
    )

    assert answer.headers["location"] == "/runs/1/answers"


def test_long_answer_is_truncated(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for _ in range(2):
            attempts.apply_events(db, make_finished_run(db), [sampled(0, "word " * 100)], 2000)
    first = shown(client).one("tbody").all("td")[0]

    head, rest = (one.text for one in first.all(class_="words"))
    assert (head.count("word"), rest.count("word")) == (64, 36)


def test_few_prompts_are_shown_for_many_runs(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for _ in range(40):
            told = [sampled(place, "A") for place in range(9)]
            attempts.apply_events(db, make_finished_run(db), told, 2000)
    ids = "/compare?runs=" + ",".join(map(str, range(1, 41)))
    pages = [parse_page(client.get(ids + more).text).one(id="answers") for more in ("", "&whole=1")]

    assert [len(rows(page)) for page in pages] == [6, 9]
    assert "Show all 9 prompts" in pages[0].text


def test_answers_of_single_run_are_shown_by_step(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        told = [
            sampled(0, "a b c", "before", 0),
            sampled(0, "a b d", "during", 5),
            sampled(0, "a b d", "during", 9),
            sampled(0, "a b d e"),
        ]
        attempts.apply_events(db, make_finished_run(db), told, 2000)
    section = parse_page(client.get("/runs/1/answers").text).one(id="answers")

    assert [head.text for head in section.one("thead").all("th")][1:] == [
        f"{head} 0 of 1 right" for head in ("Before training", "Step 5", "Step 9", "After training")
    ]
    marks = [[(one.tag, one.text) for one in cell.all()] for cell in words(section.one("tbody"))]
    assert marks == [[], [("del", "c"), ("ins", "d")], [], [("ins", "e")]]
    assert [len(cell.all("form")) for cell in section.one("tbody").all("td")] == [0, 0, 0, 1]
    assert "same as before" in section.one("tbody").all("td")[2].text
