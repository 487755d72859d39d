"""Precisions on pages: the common ones first, those that cannot be in words, plan beside audit."""

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.events import Started
from studio.recipe.precision import PRECISIONS
from studio.services.runs import attempts
from tests.support.factories import make_finished_run, make_running
from tests.support.page_reader import Node, field_error, form_fields, parse_page

COMMON = [mode.name for mode in PRECISIONS.values() if mode.is_common]
OTHERS = [mode.name for mode in PRECISIONS.values() if not mode.is_common]


def form(page: str) -> Node:
    return parse_page(page).one(id="form")


def others(page: Node) -> Node:
    (found,) = [
        part for part in page.all("details", class_="more") if part.all("input", name="precision")
    ]
    return found


def offered(part: Node) -> list[str]:
    return [radio.attributes["value"] for radio in part.all("input", name="precision")]


def test_common_precisions_are_listed_first(client: TestClient) -> None:
    page = form(client.get("/new").text)

    assert offered(page.one(id="precision")) == COMMON
    assert offered(others(page)) == OTHERS


def test_other_precisions_are_collapsed_until_one_is_chosen(client: TestClient) -> None:
    page = form(client.get("/new").text)
    data = dict(form_fields(page)) | {"precision": "bf16_kahan", "name": ""}
    again = form(client.post("/new", data=data).text)

    assert ["open" in others(part).attributes for part in (page, again)] == [False, True]


def test_conflicting_settings_show_error_at_field(client: TestClient) -> None:
    data = dict(form_fields(form(client.get("/new?preset=lora").text)))
    answer = client.post("/new", data=data | {"precision": "bf16_kahan"})

    assert answer.status_code == 422
    assert field_error(parse_page(answer.text), "precision") == (
        "bfloat16, Kahan summation sets the format of trained weights; an adapter's are float32. "
        "Choose a full fine-tune, or bfloat16 mixed with the frozen model in bfloat16."
    )


def test_adapter_run_cannot_be_repeated_in_pure_bf16(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, adapter={"kind": "lora"})

    answer = client.post("/runs/1/again", data={"precision": "bf16_pure"})

    assert (answer.status_code, "an adapter's are float32" in parse_page(answer.text).text) == (
        422,
        True,
    )


def test_run_page_compares_planned_and_actual_formats(client: TestClient, engine: Engine) -> None:
    plan = {"weights": "bfloat16", "matmul": "bfloat16", "master": "float32"}
    audit = {**plan, "matmul": "float32", "formats": {"Linear": "bfloat16"}}
    told = {"weights": "bfloat16", "plan": plan, "audit": audit}
    with unit_of_work(engine) as db:
        run = make_running(db, precision="bf16")
        attempts.apply_events(db, run, [Started(total_steps=10, resolved=told)], 10)

    label = "Requested vs. actual settings"
    table = parse_page(client.get("/runs/1/details").text).one("div", **{"aria-label": label})
    lines = [row for body in table.all("tbody") for row in body.all("tr")]
    found = [[cell.text for cell in row.parts if isinstance(cell, Node)] for row in lines]
    assert found == [
        ["Precision"],
        ["Weights", "bfloat16", "bfloat16"],
        ["Master copy of the weights", "float32", "float32"],
        ["Inputs of matrix products", "bfloat16", "float32 (differs)"],
        ["Format of each layer type"],
        ["Linear", "", "bfloat16"],
    ]


def test_api_lists_float8_formats(client: TestClient) -> None:
    modes = {mode["name"]: mode for mode in client.get("/api/v1/precisions").json()["data"]}

    names = ("matmul", "matmul_of_gradients", "param_dtype", "reduce_dtype", "package")
    assert {name: modes["fp8"][name] for name in names} == {
        "matmul": "float8_e4m3fn",
        "matmul_of_gradients": "float8_e5m2",
        "param_dtype": "bfloat16",
        "reduce_dtype": "float32",
        "package": "torchao",
    }


def test_settings_table_lists_float8_formats(client: TestClient) -> None:
    rows = parse_page(client.get("/settings").text).all("tr")
    (found,) = [row for row in rows if row.all("th") and row.all("th")[0].text == "float8 mixed"]

    assert found.all("td")[-1].text == "bfloat16 float32"


def test_api_describes_each_precision(client: TestClient) -> None:
    modes = {mode["name"]: mode for mode in client.get("/api/v1/precisions").json()["data"]}

    dual = modes["bf16_dual"]
    assert (dual["matmul"], dual["optimizer"], dual["master"], dual["needs"]) == (
        "bfloat16",
        "AdamW with float32 master",
        "float32",
        "NVIDIA Ampere or newer; CPUs emulate it or support it natively",
    )
