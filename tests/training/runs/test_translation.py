"""Models that translate between many languages: real runs with a language for each side."""

import string
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    M2M100Config,
    MBart50Tokenizer,
    MBartConfig,
    MBartTokenizer,
    NllbTokenizer,
    PreTrainedTokenizerBase,
)

from studio.protocols.events import Failed, Finished, Sampled
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.recipe.exports import ExportKind
from studio.runner.inference.model_cache import ModelCache
from studio.training.data.token_preview import tokenise_prompt
from studio.weights import language_codes
from tests.support import generated_answers
from tests.training import tiny
from tests.training.export.test_export import exported
from tests.training.runs.test_sequence_to_sequence import (
    _BART,
    LEARNS,
    make_trainer,
    models,
    pair,
    train,
    write_run,
)
from tests.training.tiny import LORA, Changes

__all__ = ["models"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

_VOCABULARY = ["<s>", "<pad>", "</s>", "<unk>", "▁", *string.digits, *string.ascii_lowercase]
_SCORES = [(piece, -float(number > 3)) for number, piece in enumerate(_VOCABULARY)]
_CONFIG: dict[str, Any] = _BART | {"pad_token_id": 1, "decoder_start_token_id": 2}
_WITHOUT_DROPS = {"dropout": 0.0, "attention_dropout": 0.0, "max_position_embeddings": 128}
CONFIGS = {
    "mbart": MBartConfig(**_CONFIG | _WITHOUT_DROPS | {"decoder_start_token_id": None}),
    "mbart50": MBartConfig(**_CONFIG | _WITHOUT_DROPS),
    "nllb": M2M100Config(**_CONFIG | _WITHOUT_DROPS, encoder_layerdrop=0.0, decoder_layerdrop=0.0),
}
LANGUAGES = {
    "mbart": ("en_XX", "fr_XX"),
    "mbart50": ("en_XX", "fr_XX"),
    "nllb": ("eng_Latn", "fra_Latn"),
}


def make_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Make a tokenizer of letters, with all codes of languages that its class has."""
    if name == "nllb":
        return NllbTokenizer(vocab={piece: i for i, piece in enumerate(_VOCABULARY)}, merges=[])
    if name == "mbart50":
        return MBart50Tokenizer(vocab=_SCORES)
    return MBartTokenizer(vocab=[*_SCORES, ("en_XX", 0.0), ("fr_XX", 0.0), ("<mask>", 0.0)])


def spoken(name: str, **changes: object) -> Changes:
    source, target = LANGUAGES[name]
    languages = {"rewriting__source_language": source, "rewriting__target_language": target}
    return LEARNS | languages | {"samples__prompts": 2, "samples__max_new_tokens": 8} | changes


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save a random model of each kind."""
    root = tmp_path_factory.mktemp("translators")
    for name, config in CONFIGS.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            AutoModelForSeq2SeqLM.from_config(config).save_pretrained(root / name)
        make_tokenizer(name).save_pretrained(root / name)
    return {name: root / name for name in CONFIGS}


@pytest.fixture(scope="module")
def runs(
    translators: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RunDir]:
    root = tmp_path_factory.mktemp("runs")
    return {name: train(root / name, folder, spoken(name)) for name, folder in translators.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_carry_the_codes_of_their_languages(
    name: str, translators: dict[str, Path], tmp_path: Path
) -> None:
    trainer = make_trainer(write_run(tmp_path / "run", translators[name], spoken(name)))
    reader = make_tokenizer(name)
    source, target = map(reader.convert_tokens_to_ids, LANGUAGES[name])

    for row in trainer.train_dataset:
        assert source in (int(row["input_ids"][0]), int(row["input_ids"][-1]))
        assert target in (int(row["labels"][0]), int(row["labels"][-1]))
    assert reader.unk_token_id not in {source, target}


@pytest.mark.parametrize("name", CONFIGS)
def test_translator_learns_and_writes_its_language_without_the_studio(
    name: str, runs: dict[str, RunDir]
) -> None:
    run = runs[name]

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    losses = tiny.metric_values(run, "eval_loss")
    assert min(losses) < losses[0] / 2
    model = AutoModelForSeq2SeqLM.from_pretrained(run.artifacts).eval()
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    target = reader.convert_tokens_to_ids(LANGUAGES[name][1])
    after = [event for event in tiny.events_of(run, Sampled) if event.stage == "after"]
    assert len(after) == 2
    for event in after:
        ids = model.generate(**reader(event.prompt, return_tensors="pt"), max_new_tokens=8)[0]
        assert target in ids[:2].tolist()
        assert reader.decode(ids, skip_special_tokens=True).strip() == event.answer


@pytest.mark.parametrize("name", CONFIGS)
def test_try_it_writes_the_same(name: str, runs: dict[str, RunDir]) -> None:
    run, (source, target) = runs[name], LANGUAGES[name]
    event = next(event for event in tiny.events_of(run, Sampled) if event.stage == "after")
    prompt = tokenise_prompt(
        TokenizerRequest(
            kind="prompt",
            model=str(run.artifacts),
            row={"messages": [{"role": "user", "content": event.prompt}]},
            chat_template="none",
            source_language=source,
            target_language=target,
        ),
        # The base model's own, which has other languages.
        make_tokenizer(name),
    )
    asked = GenerationRequest(
        model=str(run.artifacts),
        ids=prompt.ids,
        stops=prompt.stops,
        spoken=prompt.spoken,
        most=8,
        temperature=0.0,
    )
    with ModelCache().model_for(asked) as (model, tokenizer):
        found = generated_answers.answer(asked, model, tokenizer)

    assert found.text.strip() == event.answer


@pytest.mark.parametrize("name", ["mbart50", "nllb"])
@pytest.mark.parametrize("kind", ["adapter", "merged"])
def test_exports_write_the_language(
    kind: ExportKind, name: str, translators: dict[str, Path], tmp_path: Path
) -> None:
    changes = spoken(name, **LORA, optimisation__max_steps=1, samples__prompts=0)
    folder, _told = exported(train(tmp_path / "run", translators[name], changes), "float32", kind)

    target = make_tokenizer(name).convert_tokens_to_ids(LANGUAGES[name][1])
    assert GenerationConfig.from_pretrained(folder.files).forced_bos_token_id == target


def test_truncated_text_keeps_its_end_and_its_code(
    translators: dict[str, Path], tmp_path: Path
) -> None:
    rows = [pair(10**20, 10**size) for size in range(20, 40)]
    changes = spoken("mbart", data__max_length=16)
    trainer = make_trainer(write_run(tmp_path / "run", translators["mbart"], changes, rows))
    reader = make_tokenizer("mbart")
    end = [reader.eos_token_id, reader.convert_tokens_to_ids("fr_XX")]

    assert {tuple(row["labels"][-2:].tolist()) for row in trainer.train_dataset} == {tuple(end)}
    assert {len(row["labels"]) for row in trainer.train_dataset} == {16}


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (
            (None, None),
            "mbart models need a source and a target language. It has 52 languages, such as de_DE,",
        ),
        (
            ("en_XX", "xx_XX"),
            "This model has no language xx_XX. It has 52 languages, such as de_DE,",
        ),
        (("en_XX", None), "Only one of the two languages is set. Set the source and the target"),
    ],
)
def test_missing_and_unknown_languages_are_refused(
    languages: tuple[str | None, str | None],
    message: str,
    translators: dict[str, Path],
    tmp_path: Path,
) -> None:
    source, target = languages
    changes = {"rewriting__source_language": source, "rewriting__target_language": target}
    failed = tiny.last_event(train(tmp_path / "run", translators["mbart50"], changes))

    assert isinstance(failed, Failed)
    assert message in f"{failed.message} {failed.hint}"


def test_languages_are_refused_by_models_without_them(
    models: dict[str, Path], tmp_path: Path
) -> None:
    failed = tiny.last_event(train(tmp_path / "run", models["t5"], spoken("mbart")))

    assert isinstance(failed, Failed)
    assert failed.message == "t5 models have no codes of languages."


@pytest.mark.parametrize("name", CONFIGS)
def test_codes_are_read_from_a_tokenizers_files(name: str, translators: dict[str, Path]) -> None:
    assert set(LANGUAGES[name]) <= set(language_codes.read(translators[name]))
