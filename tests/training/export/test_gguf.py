"""Exports in GGUF of real runs: what is written, read back, proved, and refused in words."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.tokenization_utils_base import generate_merges

from studio import starter
from studio.protocols.events import Failed, Finished
from studio.protocols.run_dir import ExportDir, RunDir
from studio.recipe.exports import ExportDType, ExportSpec
from studio.runner.execution import execute_export
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytest.importorskip("gguf", reason="the extra gguf is not installed")
pytest.importorskip("conversion", reason="the extra gguf is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMALL = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(
        **SMALL, **HEADS, rope_parameters={"rope_type": "default", "rope_theta": 50000.0}
    ),
    "llama tied": LlamaConfig(**SMALL, **HEADS, tie_word_embeddings=True),
    "llama scaled": LlamaConfig(
        **SMALL,
        **HEADS,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen2": Qwen2Config(**SMALL, **HEADS),
    "qwen2 tied": Qwen2Config(**SMALL, **HEADS, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SMALL, **HEADS, head_dim=128),
    "gpt2": GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=4),
    "gemma2": Gemma2Config(**SMALL, **HEADS, head_dim=256, query_pre_attn_scalar=256),
}


def export(run: RunDir, dtype: ExportDType = "float32", quantiser: Path | None = None) -> ExportDir:
    taken = len(list(run.exports.iterdir())) if run.exports.exists() else 0
    folder = run.export(taken + 1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind="gguf", dtype=dtype, llama_quantize=quantiser)
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    execute_export(folder.root, StopHandler())
    return folder


def measured(folder: ExportDir) -> dict[str, float]:
    last = folder.events.read()[0][-1]
    assert isinstance(last, Finished), last
    return last.metrics


def refusal(folder: ExportDir) -> str:
    last = folder.events.read()[0][-1]
    assert isinstance(last, Failed), last
    assert not folder.files.exists()
    return last.message


def report(folder: ExportDir) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder.files / "export.json").read_text(encoding="utf-8"))
    return told


def train(
    root: Path,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
    rows: Sequence[tiny.Row] | None = None,
    **changes: object,
) -> RunDir:
    base = tiny.write_model(root / "base", config)
    if tokenizer is not None:
        tokenizer.save_pretrained(base)
    return tiny.train(root / "run", base, rows, **changes)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train(tmp_path_factory.mktemp("llama"), FAMILIES["llama"])


@pytest.mark.smoke
def test_float32_file_reads_back_as_the_same_model(llama: RunDir) -> None:
    folder = export(llama)
    told = measured(folder)

    assert told["loss_after"] == pytest.approx(told["loss_before"], abs=1e-5)
    assert (told["changed_weights"], told["overflowed_weights"]) == (0, 0)
    assert told["bytes"] == (folder.files / "model-F32.gguf").stat().st_size
    names = {path.name for path in folder.files.iterdir()}
    assert names == {"README.md", "Modelfile", "export.json", "model-F32.gguf"}


def test_report_names_hashes_answers_and_checks(llama: RunDir) -> None:
    folder = export(llama)
    told = report(folder)

    assert [file["name"] for file in told["files"]] == ["Modelfile", "README.md", "model-F32.gguf"]
    assert all(len(file["sha256"]) == 64 for file in told["files"])
    assert told["sample"]["before"] == told["sample"]["after"]
    assert told["sample"]["prompt"].startswith("What is ")
    assert told["checks"]["tokenised_texts"] == len(tiny.rows())
    assert set(told["checks"]["tensor_types"]) == {"F32"}
    assert str(llama.root).encode() not in (folder.files / "model-F32.gguf").read_bytes()


@pytest.mark.parametrize(
    ("dtype", "share", "size"),
    [("float16", 1e-3, 0.6), ("bfloat16", 0.05, 0.6), ("q8_0", 0.01, 0.4)],
)
def test_smaller_formats_lose_little(
    llama: RunDir, dtype: ExportDType, share: float, size: float
) -> None:
    told = measured(export(llama, dtype))

    assert told["loss_after"] == pytest.approx(told["loss_before"], rel=share)
    assert told["bytes"] < size * measured(export(llama))["bytes"]


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"llama"}))
def test_families_read_back_as_the_same_model(family: str, tmp_path: Path) -> None:
    told = measured(export(train(tmp_path, FAMILIES[family])))

    assert told["loss_after"] == pytest.approx(told["loss_before"], rel=1e-5)


def test_adapter_is_merged_first(tmp_path: Path) -> None:
    run = train(tmp_path, FAMILIES["qwen2"], **tiny.LORA)
    folder = export(run, "q8_0")
    told = measured(folder)

    assert told["loss_after"] == pytest.approx(told["loss_before"], rel=0.01)
    assert not folder.merged.exists()


def test_starter_is_exported_with_its_space(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    starter.write_model(tmp_path / "base")
    starter.write_rows(tmp_path)
    lines = (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    rows = [json.loads(line) for line in lines]
    run = tiny.train(tmp_path / "run", tmp_path / "base", rows, optimisation__learning_rate=1e-5)
    folder = export(run)
    told = measured(folder)

    assert told["loss_after"] == pytest.approx(told["loss_before"], abs=1e-5)
    assert '"<|user|> "' in (folder.files / "Modelfile").read_text(encoding="utf-8")


def test_modelfile_writes_what_the_chat_template_writes(llama: RunDir) -> None:
    text = (export(llama).files / "Modelfile").read_text(encoding="utf-8")

    assert text.startswith('FROM ./model-F32.gguf\nTEMPLATE """')
    assert '{{ "<|im_start|>user\\n" }}{{ .Content }}{{ "<|im_end|>\\n" }}' in text
    assert 'PARAMETER stop "<|im_end|>"\nPARAMETER num_ctx 128\n' in text


def test_shared_system_prompt_is_in_modelfile(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Add numbers."}
    rows = [{"messages": [system, *row["messages"]]} for row in tiny.rows()]
    folder = export(train(tmp_path, FAMILIES["llama"], rows=rows))

    assert 'SYSTEM """Add numbers."""' in (folder.files / "Modelfile").read_text(encoding="utf-8")


def test_template_with_numbered_turns_has_no_modelfile(tmp_path: Path) -> None:
    numbered = tiny.WITHOUT_MARKS.replace("message.role", "message.role + loop.index|string", 1)
    folder = export(train(tmp_path, FAMILIES["llama"], tiny.tokenizer(numbered)))
    told = report(folder)

    assert not (folder.files / "Modelfile").exists()
    assert told["checks"]["ollama"] is False
    assert "There is no Modelfile" in " ".join(told["checks"]["notes"])


def test_marks_of_answers_are_not_in_the_file(tmp_path: Path) -> None:
    folder = export(train(tmp_path, FAMILIES["llama"], tiny.tokenizer(tiny.WITH_MARKS)))

    written = (folder.files / "model-F32.gguf").read_bytes()
    assert b"generation %}" not in written
    assert b"add_generation_prompt" in written


def add_bos(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Let every text begin with a special token."""
    from tokenizers.processors import TemplateProcessing  # noqa: PLC0415 -- one test's

    tokenizer.add_special_tokens({"bos_token": "<|im_start|>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A",
        pair="<|im_start|> $A $B",
        special_tokens=[("<|im_start|>", tokenizer.bos_token_id)],
    )
    return tokenizer


@pytest.mark.parametrize("has_bos", [True, False])
def test_file_says_whether_texts_begin_with_a_token(has_bos: bool, tmp_path: Path) -> None:  # noqa: FBT001 -- a parameter
    import gguf  # noqa: PLC0415 -- an optional package

    tokenizer = add_bos(tiny.tokenizer()) if has_bos else tiny.tokenizer()
    folder = export(train(tmp_path, FAMILIES["llama"], tokenizer))
    fields = gguf.GGUFReader(folder.files / "model-F32.gguf").fields

    assert bool(fields["tokenizer.ggml.add_bos_token"].contents()) is has_bos


def test_added_tokens_stay_whole(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["plus"])
    folder = export(train(tmp_path, FAMILIES["llama"], tokenizer))

    assert measured(folder)["changed_weights"] == 0


def sentencepiece(*, prefix: bool) -> PreTrainedTokenizerBase:
    """Make a tokenizer with a byte fallback, as SentencePiece learns it."""
    inner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))  # noqa: S106 -- a token
    spaces: list[Any] = [normalizers.Replace(" ", "▁")]
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), *spaces] if prefix else spaces
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    known = ["<unk>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    learner = trainers.BpeTrainer(
        vocab_size=318, special_tokens=[*known, *bytes_], show_progress=False
    )
    inner.train_from_iterator(
        (turn["content"] for row in tiny.rows() for turn in row["messages"]), learner
    )
    text = json.loads(inner.to_str())
    # SentencePiece merges any two tokens that make a third, the best first.
    scores = {"".join(pair): -float(i) for i, pair in enumerate(text["model"]["merges"])}
    text["model"]["merges"] = generate_merges(text["model"]["vocab"], scores)
    text["added_tokens"] = [token for token in text["added_tokens"] if token["content"] in known]
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(text)),
        unk_token="<unk>",  # noqa: S106 -- a token
    )
    made.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|pad|>"})
    made.chat_template = tiny.WITHOUT_MARKS
    return made


@pytest.mark.parametrize("prefix", [True, False])
def test_byte_fallback_is_written_with_scores(prefix: bool, tmp_path: Path) -> None:  # noqa: FBT001 -- a parameter
    rows = [*tiny.rows(), tiny.rows()[0]]
    rows[-1] = {"messages": [{"role": "user", "content": "ü 你 🙂"}, rows[0]["messages"][1]]}
    folder = export(train(tmp_path, FAMILIES["llama"], sentencepiece(prefix=prefix), rows))

    assert report(folder)["checks"]["tokenised_texts"] == len(rows)


def with_parts(**parts: Any) -> PreTrainedTokenizerBase:  # noqa: ANN401 -- any part
    tokenizer = tiny.tokenizer()
    for name, part in parts.items():
        setattr(tokenizer.backend_tokenizer, name, part)
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (
            with_parts(
                pre_tokenizer=pre_tokenizers.Sequence(
                    [
                        pre_tokenizers.Punctuation(),
                        pre_tokenizers.ByteLevel(add_prefix_space=False),
                    ]
                )
            ),
            "it splits text into words in a way that llama.cpp has no name for",
        ),
        (with_parts(normalizer=normalizers.Lowercase()), "it changes text before it splits it"),
    ],
)
def test_tokenizer_without_a_name_is_refused(
    tokenizer: PreTrainedTokenizerBase, reason: str, tmp_path: Path
) -> None:
    assert reason in refusal(export(train(tmp_path, FAMILIES["llama"], tokenizer)))


def test_space_before_plain_text_is_refused(tmp_path: Path) -> None:
    tokenizer = with_parts(normalizer=normalizers.Prepend(" "))
    rows = [{"text": f"{i} and {i} is {2 * i}."} for i in range(20)]
    run = train(tmp_path, FAMILIES["llama"], tokenizer, rows, method="cpt")

    assert "it puts a space before each text" in refusal(export(run))


def test_small_formats_need_the_program(llama: RunDir) -> None:
    assert "llama-quantize was not found" in refusal(export(llama, "q4_k_m"))


PROGRAM = """\
#!{python}
import sys
from pathlib import Path
source, target, title = sys.argv[-3:]
Path(target).write_bytes(Path(source).read_bytes())
Path(__file__).with_name("called").write_text(" ".join(sys.argv[1:]))
"""


def test_program_is_given_file_and_format(llama: RunDir, tmp_path: Path) -> None:
    """A stand-in copies the file: what it is called with is the same."""
    import sys  # noqa: PLC0415 -- one test's

    program = tmp_path / "llama-quantize"
    program.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o700)
    folder = export(llama, "q4_k_m", program)

    called = (tmp_path / "called").read_text(encoding="utf-8").split()
    assert [os.path.basename(called[-2]), called[-1]] == ["model-Q4_K_M.gguf", "Q4_K_M"]  # noqa: PTH119 -- a text
    assert "without an importance matrix" in " ".join(report(folder)["checks"]["notes"])


def test_llama_cpp_reads_the_same_tokens_and_loss(llama: RunDir) -> None:
    pytest.importorskip("xllamacpp", reason="the bindings of llama.cpp are not installed")
    told = report(export(llama))["checks"]["llama_cpp"]

    assert told["loss"] == pytest.approx(told["loss_by_transformers"], abs=0.01)
    assert told["tokenised_texts"] == len(tiny.rows())
