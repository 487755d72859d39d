"""The reward of a run that learns from scores: in the form, and before the start."""

import json

import pytest
from fastapi.testclient import TestClient

from studio.methods import RECIPE_ADAPTER, rollouts
from tests.support.page_reader import Node, field_error, field_value, form_fields, parse_page
from tests.web.experiments.test_new_experiment import changed, drawn
from tests.web.playground.test_playground import raw_text

GRADER = "reward.grader"
OTHER = {
    "type": "string_check",
    "name": "yes",
    "operation": "like",
    "input": "{{ sample.output_text }}",
}
OTHER_TEXT = json.dumps({**OTHER, "reference": "yes"})


def open_form(client: TestClient, query: str = "?method=grpo") -> Node:
    answer = client.get(f"/new{query}")
    assert answer.status_code == 200, answer.text
    return parse_page(answer.text)


def fields_of(page: Node) -> dict[str, str]:
    form = page.one(id="form")
    texts = {
        one.attributes["name"]: raw_text(one).removeprefix("\n") for one in form.all("textarea")
    }
    return dict(form_fields(form)) | texts


def test_grader_is_shown_as_a_text_of_several_lines(client: TestClient) -> None:
    area = open_form(client).one(id="reward-grader")

    assert area.tag == "textarea"
    assert raw_text(area).strip().splitlines()[1].startswith('  "')
    assert (
        area.attributes["data-setting" if "data-setting" in area.attributes else "name"] == GRADER
    )


def test_grader_is_changed_reset_and_pasted(client: TestClient) -> None:
    page = open_form(client)
    fields = fields_of(page)
    compact = json.dumps(json.loads(fields[GRADER]), separators=(",", ":"))
    assert changed(drawn(client, "", fields | {GRADER: compact})) == []

    page = drawn(client, "", fields | {GRADER: OTHER_TEXT})
    assert changed(page) == ["Grader"]
    page = drawn(client, f"reset:{GRADER}", fields_of(page))
    assert json.loads(fields_of(page)[GRADER]) == json.loads(fields[GRADER])

    page = drawn(client, "paste", fields | {"paste": f"reward:\n  grader: {OTHER_TEXT}"})
    assert json.loads(fields_of(page)[GRADER]) == json.loads(OTHER_TEXT)


def test_grader_that_is_no_json_is_a_problem_of_its_field(client: TestClient) -> None:
    page = drawn(client, "", fields_of(open_form(client)) | {GRADER: '{"type": '})
    assert fields_of(page)[GRADER] == '{"type": '

    answer = client.post("/new", data=fields_of(page))
    assert answer.status_code == 422
    assert field_error(parse_page(answer.text), GRADER).startswith("This is no JSON")


def test_recipe_holds_a_grader_on_one_line() -> None:
    values = {"method": "grpo", "base_model": "a", "dataset": "b", "precision": "fp32"}
    texts = (OTHER_TEXT, json.dumps(json.loads(OTHER_TEXT), indent=4).replace("\n", "\r\n"))
    recipes = [
        RECIPE_ADAPTER.validate_python({**values, "reward": {"grader": text}}) for text in texts
    ]

    assert recipes[0] == recipes[1]
    for text in (rollouts.DEFAULT_GRADER, rollouts.CLOSE_GRADER):
        assert rollouts.Reward(grader=text).grader == text


def add_tasks(client: TestClient, row: dict[str, object] | None = None) -> str:
    """Add a dataset of prompts, with columns that graders may read."""
    row = row or {"solution": "2", "level": 1}
    rows = [
        json.dumps({"messages": [{"role": "user", "content": f"{n} plus 1?"}], **row})
        for n in range(12)
    ]
    client.post(
        "/api/v1/datasets", files={"file": ("sums.jsonl", "\n".join(rows).encode())}
    ).raise_for_status()
    return "sums"


def reading(column: str) -> str:
    return json.dumps({**OTHER, "reference": f"{{{{ item.{column} }}}}"})


def recipe_values(dataset: str, **reward: str) -> dict[str, object]:
    return {
        "method": "grpo",
        "base_model": "starter",
        "dataset": dataset,
        "precision": "fp32",
        "reward": reward,
    }


LABEL = json.dumps(
    {
        "type": "label_model",
        "name": "a",
        "model": "starter",
        "labels": ["x"],
        "passing_labels": ["x"],
        "input": [{"role": "user", "content": "?"}],
    }
)
MISSING = (
    "The {grader} reads item.answer, and the rows have no such column: they have solution, level."
)


def test_grader_of_a_missing_column_is_refused_everywhere(client: TestClient) -> None:
    name = add_tasks(client)
    fields = fields_of(open_form(client)) | {"dataset": name, GRADER: reading("answer")}

    preview = parse_page(client.post("/new/advice", data=fields).text)
    assert MISSING.format(grader="grader") in preview.text
    refused = client.post("/new", data=fields)
    assert refused.status_code == 422
    assert field_error(parse_page(refused.text), GRADER).startswith(MISSING.format(grader="grader"))

    for setting in ("grader", "held_out_grader"):
        recipe = recipe_values(name, **{"grader": reading("solution"), setting: reading("answer")})
        answer = client.post("/api/v1/runs", json={"name": "a", "recipe": recipe})
        problem = answer.json()["error"]
        words = setting.replace("held_out_", "held-out ")
        assert (answer.status_code, problem["message"]) == (422, MISSING.format(grader=words))
        assert problem["param"] == f"reward.{setting}"


def test_grader_of_columns_that_rows_have_may_start(client: TestClient) -> None:
    name = add_tasks(client)

    for column in ("solution", "level", "messages"):
        recipe = recipe_values(name, grader=reading(column))
        answer = client.post("/api/v1/runs", json={"name": "a", "recipe": recipe})
        assert answer.status_code == 201, answer.text
    refused = recipe_values(name, grader=reading("reference_answer"))
    assert client.post("/api/v1/runs", json={"name": "a", "recipe": refused}).status_code == 422
    recipe = recipe_values("starter", grader=reading("reference_answer"))
    assert client.post("/api/v1/runs", json={"name": "a", "recipe": recipe}).status_code == 201


def type_of(page: Node) -> str:
    grader = json.loads(fields_of(page)[GRADER])
    return str(grader["type"])


def test_default_grader_suits_the_dataset(client: TestClient) -> None:
    """The first dataset has numbers as answers, to be found in what a model says."""
    page = open_form(client)
    assert type_of(page) == "python"
    assert "'reference_answer'" in fields_of(page)[GRADER]

    name = add_tasks(client, {"solution": "a sentence of some more words", "level": 1})
    for query in ("?from=dataset:2", "?method=grpo", "?method=rloo"):
        page = open_form(client, query)
        assert field_value(page.one(id="form"), "dataset") == name
        assert type_of(page) == "text_similarity"
        assert "{{ item.solution }}" in fields_of(page)[GRADER]
        assert changed(drawn(client, "", fields_of(page))) == []


def test_default_grader_follows_the_method_and_the_preset(client: TestClient) -> None:
    add_tasks(client)
    fields = fields_of(open_form(client, "?method=grpo")) | {"dataset": "starter"}
    page = drawn(client, "preset:dapo", fields)
    assert "'reference_answer'" in fields_of(page)[GRADER]

    page = drawn(client, "method:rloo", fields | {"dataset": "sums"})
    assert "'solution'" in fields_of(page)[GRADER]


def test_answers_in_words_keep_the_grader_of_the_preset(client: TestClient) -> None:
    rows = [json.dumps({"prompt": f"Say {n}", "completion": f"it is {n} now"}) for n in range(9)]
    files = {"file": ("words.jsonl", "\n".join(rows).encode())}
    client.post("/api/v1/datasets", files=files).raise_for_status()

    page = open_form(client)
    assert field_value(page.one(id="form"), "dataset") == "words"
    assert type_of(page) == "multi"


def rewarded(page: Node) -> str:
    return " ".join(page.one(id="rewarded").text.split())


def builder_fields(page: Node) -> dict[str, str]:
    form = page.one(id="grader-form")
    texts = {
        one.attributes["name"]: raw_text(one).removeprefix("\n") for one in form.all("textarea")
    }
    return dict(form_fields(form)) | texts


def test_form_says_what_is_rewarded(client: TestClient) -> None:
    page = open_form(client)
    assert rewarded(page) == "The right number compared with item.reference_answer"
    assert page.one(id="bench").attributes["hx-include"] == "#form"
    assert page.all(id="trial")

    sft = open_form(client, "?method=sft")
    assert not sft.all(id="rewarded")
    assert not sft.all(id="bench")


@pytest.mark.parametrize(
    ("grader", "words"),
    [
        (OTHER_TEXT, "Contains a text compared with yes"),
        (rollouts.CLOSE_GRADER, "The expected answer, exactly compared with item.reference_answer"),
        (LABEL, "A grader of your own"),
        ("{", "The grader cannot be read. Show its JSON"),
    ],
)
def test_words_follow_the_grader(client: TestClient, grader: str, words: str) -> None:
    fields = fields_of(open_form(client)) | {GRADER: grader}
    preview = parse_page(client.post("/new/advice", data=fields).text)
    (part,) = preview.all("hx-partial", **{"hx-target": "#rewarded"})

    assert " ".join(part.text.split()).startswith(words)


def test_grader_that_can_read_the_rows_is_offered(client: TestClient) -> None:
    fields = fields_of(open_form(client)) | {"dataset": add_tasks(client)}
    preview = parse_page(client.post("/new/advice", data=fields).text)
    (part,) = preview.all("hx-partial", **{"hx-target": "#rewarded"})

    button = part.one("button")
    assert button.text == "The right number"
    offered = json.loads(button.attributes["data-repair"])
    assert "'solution'" in offered[GRADER]
    answer = client.post("/new", data=fields | offered)
    assert answer.url.path.startswith("/runs/"), answer.text


def test_builder_changes_the_grader_of_an_experiment(client: TestClient) -> None:
    """All else that was entered is still there afterwards."""
    rate = "optimisation.learning_rate"
    fields = fields_of(open_form(client)) | {"name": "mine & yours", "notes": "ж", rate: "2e-5"}
    answer = client.post("/graders/form", data=fields | {GRADER: OTHER_TEXT, "do": ""})
    builder = builder_fields(parse_page(answer.text))
    assert builder["parts.0.purpose"] == "contains"
    assert builder["parts.0.reference"] == "yes"
    assert builder["dataset"] == fields["dataset"]
    assert answer.headers["HX-Push-Url"] == "/graders?dataset=starter"

    redrawn = client.post("/graders/form", data=builder | {"parts.0.reference": "no"})
    answer = client.post("/graders/train", data=builder_fields(parse_page(redrawn.text)))
    kept = fields_of(parse_page(answer.text))
    assert json.loads(kept.pop(GRADER))["reference"] == "no"
    assert {**kept, GRADER: fields[GRADER]} == fields
    assert answer.headers["HX-Push-Url"] == "/new?method=grpo&preset=quick"


def test_long_grader_trains(client: TestClient) -> None:
    """It is too long for an address."""
    add_tasks(client)
    builder = builder_fields(parse_page(client.get("/graders?dataset=sums").text))
    source = "def grade(sample, item):\n    return 1.0\n" + "# a comment\n" * 10_000
    grader = json.dumps({"type": "python", "name": "long", "source": source})
    answer = client.post("/graders/train", data=builder | {"json": grader})

    page = parse_page(answer.text)
    fields = fields_of(page)
    assert (fields["method"], fields["dataset"]) == ("grpo", "sums")
    assert json.loads(fields[GRADER])["source"] == source
    assert rewarded(page) == "A Python program"
    assert client.post("/new", data=fields).url.path.startswith("/runs/")


def test_grader_with_problems_does_not_train(client: TestClient) -> None:
    builder = builder_fields(parse_page(client.get("/graders").text))
    page = parse_page(client.post("/graders/train", data=builder | {"json": "{"}).text)

    assert page.one(id="grader-json-problem").text.startswith("This is not valid JSON")


def test_unreadable_grader_of_an_experiment_is_shown_with_its_problem(client: TestClient) -> None:
    fields = fields_of(open_form(client)) | {GRADER: "{"}
    page = parse_page(client.post("/graders/form", data=fields).text)

    assert builder_fields(page)["json"] == "{"
    assert page.one(id="grader-json-problem").text.startswith("This is not valid JSON")


@pytest.mark.parametrize("experiment", ["&" * 600 + "a=1", "a=1&a.b=2", "%ff", "method=xyz"])
def test_form_of_an_experiment_that_was_tampered_with(client: TestClient, experiment: str) -> None:
    builder = builder_fields(parse_page(client.get("/graders").text))
    answer = client.post("/graders/train", data=builder | {"experiment": experiment})

    assert answer.status_code < 500


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "8 * 8 = 64 answers a step"),
        ({"optimisation.gradient_accumulation_steps": "2"}, "8 * 2 * 8 = 128 answers a step"),
    ],
)
def test_line_says_how_many_answers_a_step_has(
    client: TestClient, changes: dict[str, str], words: str
) -> None:
    fields = fields_of(open_form(client)) | changes
    preview = parse_page(client.post("/new/advice", data=fields).text)
    (line,) = preview.all("hx-partial", **{"hx-target": "#tuned"})

    assert words in line.text.replace("\N{MULTIPLICATION SIGN}", "*")


def test_dataset_page_offers_to_learn_from_scores(client: TestClient) -> None:
    add_tasks(client)
    for number in (1, 2):
        links = parse_page(client.get(f"/datasets/{number}").text).all("a")
        (link,) = [one for one in links if one.text == "Learn from scores"]
        page = open_form(client, link.attributes["href"].removeprefix("/new"))
        assert fields_of(page)["method"] == "grpo"
