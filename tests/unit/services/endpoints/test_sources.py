"""What can be served, and by which engine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tasks import Export
from studio.engines import ENGINES
from studio.errors import ConflictError, InvalidError, NotFoundError, StudioError
from studio.protocols.run_dir import RunDir
from studio.services.endpoints import endpoints, sources
from studio.services.endpoints.sources import Servable, Source
from studio.services.models.served_models import ServedModel
from studio.services.runs import runs
from studio.settings import Settings
from tests.support import evaluated_runs, factories, served_exports

PLAIN: dict[str, Any] = {"peft_type": "LORA", "r": 8, "bias": "none"}


def adapter(config: dict[str, Any], **served: Any) -> Servable:  # noqa: ANN401 -- any field
    model = ServedModel(model="/base", adapter="/adapter", **served)
    return Servable(
        format="adapter",
        path=Path("/base"),
        adapter=Path("/adapter"),
        served=model,
        adapter_config=config,
    )


def test_export_with_gguf_file_is_served_from_it(db: Session, settings: Settings) -> None:
    source = served_exports.add(db, settings)

    servable = sources.resolve(db, settings.runs, source)
    assert (servable.format, servable.path.name) == ("gguf", "model.gguf")
    assert (servable.dtype, servable.served) == ("float16", None)


def test_quantised_export_is_served_by_vllm_alone(db: Session, settings: Settings) -> None:
    source = served_exports.add(db, settings)
    export = db.get(Export, source.export_id)
    assert export is not None
    export.kind, export.dtype = "bitsandbytes", "nf4"
    files = RunDir(settings.runs / str(export.run_id)).export(export.id or 0).files
    (files / "model.gguf").rename(files / "model.safetensors")

    servable = sources.resolve(db, settings.runs, source)
    refusals = {name: sources.explain_refusal(ENGINES[name], servable) for name in ENGINES}
    assert (servable.format, servable.dtype, refusals["vllm"]) == ("folder", "auto", "")
    assert refusals["studio"].startswith("It does not load quantised exports")


def test_first_part_of_split_gguf_is_named(tmp_path: Path) -> None:
    for name in ("model-00002-of-00002.gguf", "model-00001-of-00002.gguf", "mmproj.gguf"):
        (tmp_path / name).touch()

    assert sources.find_gguf(tmp_path) == tmp_path / "model-00001-of-00002.gguf"


def test_run_is_served_as_its_adapter_in_the_format_it_computed_in(
    db: Session, settings: Settings
) -> None:
    run = factories.make_finished_run(db, adapter={"kind": "lora", "r": 4})
    folder = evaluated_runs.lay_out(db, settings, run)
    (folder.artifacts / sources.ADAPTER_CONFIG).write_text(json.dumps(PLAIN))

    servable = sources.resolve(db, settings.runs, Source(run_id=1))
    assert (servable.format, servable.adapter) == ("adapter", folder.artifacts)
    assert (servable.path, servable.dtype) == (settings.models / "starter", "bfloat16")
    assert servable.adapter_rank == 8
    (found,) = sources.list_sources(db, settings.runs, run)
    assert found[0] == Source(run_id=1)


def test_export_of_whole_model_is_served_as_its_folder(db: Session, settings: Settings) -> None:
    source = served_exports.add(db, settings)
    files = served_exports.files(settings, source)
    (files / "model.gguf").unlink()
    (files / "config.json").write_text("{}")

    servable = sources.resolve(db, settings.runs, source)
    assert (servable.format, servable.path) == ("folder", files)
    assert servable.served is not None
    assert (servable.served.model, servable.served.adapter) == (str(files), "")


def test_what_cannot_be_served_is_refused_in_words(db: Session, settings: Settings) -> None:
    source = served_exports.add(db, settings)
    unfinished = factories.make_running(db)
    db.add(Export(run_id=1, kind="merged", dtype="float32"))
    db.flush()
    refused: list[tuple[Source, type[StudioError], str]] = [
        (Source(run_id=9), NotFoundError, "Run 9 does not exist."),
        (Source(run_id=unfinished.id or 0), ConflictError, "Run 2 has no model to serve."),
        (Source(run_id=1, step=7), NotFoundError, "The checkpoint of step 7 was not kept."),
        (Source(run_id=1, export_id=9), NotFoundError, "Run 1 has no export 9."),
        (Source(run_id=1, export_id=2), ConflictError, "Export 2 is queued."),
    ]
    for wanted, kind, message in refused:
        with pytest.raises(kind) as caught:
            sources.resolve(db, settings.runs, wanted)
        assert caught.value.message == message
    run = runs.get(db, source.run_id)
    run.status = RunStatus.FAILED
    with pytest.raises(ConflictError, match="Run 1 has no model to serve"):
        sources.resolve(db, settings.runs, source)


@pytest.mark.parametrize(
    ("changed", "served", "reason"),
    [
        ({}, {}, ""),
        ({"peft_type": "OFT"}, {}, "plain LoRA adapters"),
        ({"use_dora": True}, {}, "plain LoRA adapters"),
        ({"modules_to_save": ["lm_head"]}, {}, "plain LoRA adapters"),
        ({"bias": "all"}, {}, "plain LoRA adapters"),
        ({}, {"base_dtype": "nf4"}, "trained with a base in nf4"),
        ({}, {"base_dtype": "float32"}, ""),
        ({}, {"code": "abc"}, "runs code of its own"),
        ({}, {"weights": "/checkpoint-4"}, "Checkpoints are served by the studio alone"),
    ],
)
def test_vllm_refuses_what_it_would_load_differently(
    changed: dict[str, Any], served: dict[str, Any], reason: str
) -> None:
    found = sources.explain_refusal(ENGINES["vllm"], adapter(PLAIN | changed, **served))

    assert found == "" if not reason else reason in found
    assert not sources.explain_refusal(ENGINES["studio"], adapter(PLAIN | changed, **served))


def test_largest_rank_of_an_adapter_counts() -> None:
    assert adapter(PLAIN | {"rank_pattern": {"q_proj": 64}}).adapter_rank == 64


@pytest.mark.parametrize(
    "source",
    [Source(run_id=12), Source(run_id=12, step=40), Source(run_id=12, export_id=3)],
)
def test_source_is_read_as_it_is_written(source: Source) -> None:
    assert sources.parse(sources.to_text(source)) == source


@pytest.mark.parametrize(
    "text", ["", "run:", "run:x", "run:-1", "run:1@", "run:1/export:", "run:²", "run:" + "9" * 30]
)
def test_other_text_is_no_source(text: str) -> None:
    with pytest.raises(InvalidError, match="Choose what to serve"):
        sources.parse(text)


def test_suggested_name_is_free_and_plain(db: Session, settings: Settings) -> None:
    source = served_exports.add(db, settings)
    names = [endpoints.suggest_name(db, source, text) for text in ("My pets!", "日本語", "starter")]
    assert names == ["My-pets", "model", "starter-2"]
    assert endpoints.suggest_name(db, replace(source, step=4), "pets") == "pets-4"
    for name in names:
        assert endpoints.NAME.fullmatch(name)
    assert RunDir(settings.runs / "1").artifacts.is_dir()
