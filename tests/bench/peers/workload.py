"""What all tools train: a Llama of 15 million weights, and conversations of one to twelve turns."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from studio import starter

ROWS = 64
MAX_LENGTH = 512
BATCH, ACCUMULATION = 2, 4
STEPS_PER_EPOCH = ROWS // (BATCH * ACCUMULATION)
EPOCHS = 2
LEARNING_RATE = 1e-3
RANK = 8
SEED = 42

CONFIG = LlamaConfig(
    vocab_size=8192,
    hidden_size=384,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=6,
    num_key_value_heads=6,
    max_position_embeddings=1024,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=True,
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What a tool is asked for."""

    adapter: Literal["lora", "full"]
    mode: Literal["fp32", "bf16"]

    @property
    def name(self) -> str:
        return f"{self.adapter}, {self.mode}"


CELLS = tuple(Cell(adapter, mode) for adapter in ("lora", "full") for mode in ("fp32", "bf16"))


@dataclass(frozen=True, slots=True)
class Workload:
    """A folder with the model and the rows, and how many tokens all rows have together."""

    folder: Path
    tokens: int

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def rows(self) -> Path:
        """Rows as chat completions have them: `messages`, each with role and content."""
        return self.folder / "rows.jsonl"

    @classmethod
    def write(cls, folder: Path) -> "Workload":
        workload = cls(folder, 0)
        _write_model(workload.model)
        rows = _conversations(folder)
        workload.rows.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return cls(folder, _count_tokens(workload.model, rows))


def _write_model(folder: Path) -> None:
    folder.mkdir()
    starter.write_model(folder)
    torch.manual_seed(SEED)
    LlamaForCausalLM(CONFIG).save_pretrained(folder)


def _conversations(folder: Path) -> list[dict[str, Any]]:
    starter.write_rows(folder)
    with (folder / starter.SPLITS[0]).open(encoding="utf-8") as lines:
        rows = [json.loads(line)["messages"] for line in lines]
    turns = [row for row in rows if [one["role"] for one in row] == ["user", "assistant"]]
    choice = random.Random(SEED)  # noqa: S311 -- draws rows, no secrets
    return [
        {"messages": [message for turn in _some(turns, choice) for message in turn]}
        for _ in range(ROWS)
    ]


def _some(turns: list[Any], choice: random.Random) -> list[Any]:
    return choice.sample(turns, choice.randint(1, 12))


def _count_tokens(model: Path, rows: list[dict[str, Any]]) -> int:
    tokenizer = AutoTokenizer.from_pretrained(model)
    lengths = [
        len(tokenizer.apply_chat_template(row["messages"], tokenize=True)["input_ids"])
        for row in rows
    ]
    assert max(lengths) <= MAX_LENGTH, max(lengths)
    return sum(lengths)
