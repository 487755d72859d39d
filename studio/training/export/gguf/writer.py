"""Write a model as one GGUF file, with a Modelfile for Ollama beside it, and verify both."""

import copy
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.recipe.exports import explain_missing
from studio.training import job
from studio.training.data import chat_templates, labels
from studio.training.data.chat_templates import ChatTemplate, ChatTemplateError
from studio.training.data.rows import TrainingRow
from studio.training.evaluation.perplexity import Perplexity
from studio.training.export.exporter import Exporter
from studio.training.export.gguf import (
    checks,
    conversion,
    llama_cpp,
    modelfile,
    quantisation,
    reading,
    refusals,
    turns,
    vocabulary,
)
from studio.training.export.gguf.checks import TokenisedTexts
from studio.training.export.gguf.conversion import GgufTokens
from studio.training.export.gguf.turns import NotProvableError, Turn, TurnParts
from studio.training.export.gguf.vocabulary import Vocabulary
from studio.weights import safetensors_headers

MODELFILE = "Modelfile"
_MARKS = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")
"""Marks of answers, which only Transformers knows."""
_PROBES = (
    "The quick brown fox, at 12:30, paid $1,234.56!",
    "Größe, café, 你好 and русский 🙂",
    "def f(x):\n    return x  # twice\n\n",
)
"""Texts that are tokenised if the rows are gone."""


class GgufWriter:
    """Writes one GGUF file."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._spec, self._source = exporter.spec, exporter.source
        self._tokenizer = exporter.source.tokenizer
        self._notes: list[str] = []
        self._found: dict[str, Any] = {}
        self._model: PreTrainedModel | None = None

    def refuse(self) -> None:
        """Raise an InvalidError if something is not installed, or the tokenizer does not fit."""
        quantiser = self._spec.llama_quantize
        missing, hint = explain_missing("gguf", self._spec.number_format, "", quantiser)
        if missing:
            raise InvalidError(missing, hint=hint)
        if note := self._vocabulary.note:
            self._notes.append(note)

    def write(self, partial: Path, done: Callable[[float], None]) -> dict[str, float]:
        """Write the file and the Modelfile. Return how much the weights changed."""
        stage, file = self._stage(), self._file(partial)
        name, number = self._source.job.name, self._spec.number_format
        if number.needs_quantiser:
            assert self._spec.llama_quantize is not None  # noqa: S101 -- refuse has looked
            plain = self._exporter.folder.merged / "plain.gguf"
            conversion.convert(stage, plain, "float32", self._tokens, name)
            done(0.3)
            self._notes += quantisation.quantise(
                plain, file, number.title, self._spec.llama_quantize, self._rows.texts
            )
            plain.unlink()
        else:
            conversion.convert(stage, file, self._spec.dtype, self._tokens, name)
        done(0.6)
        self._found["tensor_types"] = conversion.tensor_types(file)
        checks.compare_tokens(reading.read_tokenizer(file), self._rows)
        self._found["tokenised_texts"] = len(self._rows.texts)
        self._write_modelfile(partial)
        config = self._exporter.load_config(self._exporter.model_folder)
        if reading.scales_positions(config):
            self._notes.append(
                "How positions are scaled was not read back: Transformers takes it from the "
                "model's own config."
            )
        self._model = reading.read_model(file, config)
        files = safetensors_headers.weight_files(self._exporter.model_folder)
        return checks.compare_weights(self._model, files).metrics()

    def load(self, partial: Path) -> PreTrainedModel:
        """Return the model that was read back, on the device that measures."""
        del partial
        assert self._model is not None  # noqa: S101 -- written before
        return self._exporter.place(self._model)

    def verify(
        self, partial: Path, before: Perplexity | None, after: Perplexity | None
    ) -> dict[str, Any]:
        """Compare the loss, and ask llama.cpp if it is installed."""
        number, file = self._spec.number_format, self._file(partial)
        # Products of 8 bits round what they read as well, which no plain model does.
        is_judged = not self._exporter.has_int8_base
        if is_judged:
            checks.compare_loss(self._spec.dtype, before, after)
        model = self.load(partial)
        added = int(self._tokens.adds_bos) + int(self._tokens.adds_eos)
        prompt = self._first_prompt
        answer = checks.ask_llama_cpp(file, model, self._rows, prompt, added=added)
        if answer is not None:
            ours, theirs = checks.compare_llama_cpp(number.name, model, self._rows, answer)
            self._found["llama_cpp"] = {
                "loss": theirs,
                "loss_by_transformers": ours,
                "tokens": len(answer.losses),
                "tokenised_texts": len(answer.counts),
                "answer": answer.answer,
            }
        elif llama_cpp.is_installed():
            self._notes.append("llama.cpp could not read the file here, so it was not asked.")
        else:
            self._notes.append(
                "llama.cpp was not asked: its bindings (xllamacpp) are not installed here."
            )
        return self._found | {"file": file.name, "notes": self._notes}

    def _file(self, partial: Path) -> Path:
        return partial / f"model-{self._spec.number_format.title}.gguf"

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        described = json.loads(self._tokenizer.backend_tokenizer.to_str())
        recognise = partial(conversion.recognise_split, self._tokenizer)
        return vocabulary.describe(described, recognise)

    @cached_property
    def _tokens(self) -> GgufTokens:
        tokenizer = self._tokenizer
        text = tokenizer("a")["input_ids"]
        plain = tokenizer("a", add_special_tokens=False)["input_ids"]
        stops = [stop for stop in self._stops if stop != tokenizer.eos_token_id]
        return GgufTokens(
            vocabulary=self._vocabulary,
            adds_bos=tokenizer.bos_token_id is not None
            and text[: len(text) - len(plain)][:1] == [tokenizer.bos_token_id],
            adds_eos=len(text) > len(plain) and text[-1] == tokenizer.eos_token_id,
            turn_end=stops[0] if stops else None,
        )

    @cached_property
    def _template(self) -> ChatTemplate | None:
        return chat_templates.load(self._tokenizer) if self._tokenizer.chat_template else None

    @property
    def _stops(self) -> list[int]:
        return self._template.stop_tokens if self._template else [self._tokenizer.eos_token_id]

    @cached_property
    def _parts(self) -> TurnParts | NotProvableError | None:
        """The chat template in parts, or why it is more than these; None without a template."""
        if self._template is None:
            return None
        try:
            return turns.cut(self._render)
        except ChatTemplateError as error:
            return NotProvableError(f"it refuses a plain conversation ({error.reason})")
        except NotProvableError as error:
            return error

    def _render(self, conversation: Sequence[Turn], /, *, prompts: bool) -> str:
        assert self._template is not None  # noqa: S101 -- called with one
        return self._spell(self._template.render_turns(conversation, prompts=prompts))

    def _spell(self, text: str) -> str:
        """Write what the tokenizer puts before each piece of text, and llama.cpp does not."""
        prefix = self._vocabulary.prefix
        if not prefix:
            return text
        tokens = sorted(self._tokenizer.get_added_vocab(), key=len, reverse=True)
        pieces = re.split(f"({'|'.join(map(re.escape, tokens))})", text)
        return "".join(
            prefix + piece if piece and i % 2 == 0 else piece for i, piece in enumerate(pieces)
        )

    @cached_property
    def _exported_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer as the file has it: its chat template can be read outside Transformers."""
        tokenizer = copy.deepcopy(self._tokenizer)
        if tokenizer.chat_template is None:
            return tokenizer
        if self._vocabulary.prefix:
            if not isinstance(self._parts, TurnParts):
                raise refusals.space_in_template()
            tokenizer.chat_template = self._parts.to_jinja()
            tokenizer.backend_tokenizer.normalizer = None
        else:
            tokenizer.chat_template = _MARKS.sub(_replace_mark, tokenizer.get_chat_template())
        return tokenizer

    @cached_property
    def _data(self) -> tuple[list[TrainingRow], list[TrainingRow]]:
        """The run's rows for training and for validation; none if the dataset is gone."""
        with suppress(FileNotFoundError):
            return job.read_rows_of_run(self._source.recipe, self._source.job)
        return [], []

    @cached_property
    def _rows(self) -> TokenisedTexts:
        train, validation = self._data
        readable = (row for row in (*validation, *train) if row.text is not None or self._template)
        chosen = list(islice(readable, checks.MAX_ROWS))
        if not chosen:
            ids = self._tokenizer(list(_PROBES), add_special_tokens=False)["input_ids"]
            return TokenisedTexts(ids=ids, texts=_PROBES)
        if self._vocabulary.prefix and any(row.text is not None for row in chosen):
            raise refusals.space_before_text()
        mine = labels.label_rows(chosen, self._template, self._tokenizer)
        exported = self._exported_tokenizer
        template = ChatTemplate(exported) if self._template else None
        theirs = labels.label_rows(chosen, template, exported)
        texts = [row.text for row in mine]
        return TokenisedTexts(
            ids=self._tokenizer(texts, add_special_tokens=False)["input_ids"],
            texts=[row.text for row in theirs],
        )

    @property
    def _first_prompt(self) -> list[dict[str, str]]:
        """The conversation before the first measured answer; empty for other rows."""
        examples = self._source.examples
        row = examples.rows[0] if examples else None
        if row is None or row.text is not None or self._template is None:
            return []
        turns_before = [turn for turn in row.messages if turn["role"] in {"system", "user"}]
        return [{"role": str(t["role"]), "content": str(t["content"])} for t in turns_before[:2]]

    def _stage(self) -> Path:
        """Lay out the folder that the converter reads: the weights, and the exported tokenizer."""
        name = re.sub(r"[^\w.-]+", "-", self._source.job.name, flags=re.ASCII).strip("-.")
        stage = self._exporter.folder.merged / "stage" / (name or "model")
        stage.mkdir(parents=True)
        folder = self._exporter.model_folder.resolve()
        for path in folder.glob("model*.safetensors*"):
            (stage / path.name).symlink_to(path)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # The tokenizer says which tokens are special; a config may name some that it has not.
        kept = {name: value for name, value in config.items() if name not in _TOKEN_IDS}
        (stage / "config.json").write_text(json.dumps(kept), encoding="utf-8")
        self._exported_tokenizer.save_pretrained(stage)
        return stage

    def _write_modelfile(self, partial: Path) -> None:
        parts = self._parts
        if not isinstance(parts, TurnParts):
            reason = "it has no chat template" if parts is None else str(parts)
            self._found["ollama"] = False
            self._notes.append(
                f"There is no Modelfile: Ollama has templates of its own, and this one cannot be "
                f"written as one, because {reason}. llama.cpp reads the embedded template."
            )
            return
        self._found["ollama"] = True
        if not parts.has_system:
            self._notes.append("The chat template has no system prompt of its own.")
        most = getattr(self._exporter.load_config(self._exporter.model_folder), _CONTEXT, None)
        bos = self._tokenizer.bos_token if self._tokens.adds_bos else None
        facts = modelfile.ModelfileFacts(
            file=self._file(partial).name,
            template=parts.to_go(without=bos or ""),
            system=modelfile.shared_system(self._data[0]) if parts.has_system else "",
            stops=self._tokenizer.convert_ids_to_tokens(self._stops),
            context=modelfile.choose_context(most, self._source.recipe.data.max_length),
        )
        (partial / MODELFILE).write_text(modelfile.write(facts), encoding="utf-8")


_CONTEXT = "max_position_embeddings"
_TOKEN_IDS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})
"""What a config says of special tokens."""


def _replace_mark(mark: re.Match[str]) -> str:
    """Replace a mark by a condition that always holds, with the same control of spaces."""
    what = "endif" if mark[2] else "if true"
    return f"{{%{mark[1]} {what} {mark[3]}%}}"
