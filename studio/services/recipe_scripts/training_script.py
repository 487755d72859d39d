"""The text of a script that trains with TRL what supervised recipes train.

Words in `@` are filled in from a recipe.
"""

from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("torch", "transformers", "trl", "peft")

HEADER = '''\
"""Train with TRL what this recipe of Mantissa Studio trains.

    python train.py train.jsonl
    python train.py train.jsonl --validation validation.jsonl --model path/to/the/model

The rows are those of the dataset, one JSON object a line, as its page in the studio exports them:
{"messages": [...]} or {"text": ...}.@versions@

On the same machine with the same packages, the losses are those of the studio's run, but for
the last digits: sums are taken in another order. What is not the same:

* A step whose gradient is NaN or infinite is skipped by the studio, and ends its run. Here, nothing
  looks at it.
* The validation loss is a mean over batches here. The studio lets every token count equally.
* The studio saves checkpoints by time, and writes sample answers. This script does neither.
* Calls of functions are not read here: rows with tools are refused.
* The studio checks that the number formats are those of the recipe, and that all weights of the
  model are in its files.
"""

import argparse
import json
import random
import sys
from bisect import bisect_left, bisect_right

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template
from trl import SFTConfig, SFTTrainer

MODEL = @model@
WEIGHTS = @weights@  # The format that the model's weights are loaded in.
ATTENTION = @attention@
LORA = @lora@
MAX_LENGTH = @max_length@
VALIDATION_SHARE = @validation_share@
SEED = @seed@
CHAT_TEMPLATE = @chat_template@  # None for the model's own.
END_OF_TURN = @end_of_turn@
ARGUMENTS = @arguments@
'''

BODY = '''
IGNORED = -100  # The label of tokens that are only read.


def read_rows(path):
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    rows = [row for row in rows if row.get("label") is not False]  # Not those rated bad.
    for row in rows:
        if "text" not in row and "messages" not in row:
            sys.exit("These rows are no conversations and no texts.")
        turns = [*row.get("messages", []), *row.get("chosen", [])]
        if row.get("tools") or any(turn.get("tool_calls") for turn in turns):
            sys.exit("This script does not read rows with tools.")
        if any(turn.get("images") for turn in turns) or "item" in row:
            sys.exit("This script does not read rows with images, or without answers.")
    return rows


def split(rows):
    """Hold out rows for validation: the seed chooses which."""
    count = min(len(rows), max(1, round(len(rows) * VALIDATION_SHARE)))
    held_out = set(random.Random(SEED).sample(range(len(rows)), count))
    train = [row for number, row in enumerate(rows) if number not in held_out]
    return train, [rows[number] for number in sorted(held_out)]


def load_tokenizer(model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.sep_token
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if CHAT_TEMPLATE is not None:
        if END_OF_TURN and END_OF_TURN in tokenizer.get_vocab():
            tokenizer.eos_token = END_OF_TURN
        first = tokenizer("a")["input_ids"][:1]
        has_opening = bool(tokenizer.bos_token) and first == [tokenizer.bos_token_id]
        opening = "bos_token" if has_opening else "''"
        tokenizer.chat_template = CHAT_TEMPLATE.replace("OPENING", opening)
    return tokenizer


def common_length(one, other):
    pairs = enumerate(zip(one, other))
    shorter = min(len(one), len(other))
    return next((number for number, (left, right) in pairs if left != right), shorter)


class Conversations:
    """Renders conversations, and finds the answers in them."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.template = tokenizer.get_chat_template()
        self.marks_answers = "generation %}" in self.template or "generation -%}" in self.template
        probe = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Xyzzy"}]
        tail = self.render(probe)[0].rpartition("Xyzzy")[2]
        added = [str(one) for one in tokenizer.added_tokens_decoder.values() if one.special]
        special = sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
        self.closing = tail.rstrip() or tail
        has_end = any(token in tail for token in special)
        self.ending = "" if has_end else tokenizer.eos_token or ""
        self.stop = next((token for token in special if tail.startswith(token)), "")

    def render(self, turns, **options):
        names = ("weight", "tool_calls")
        turns = [{name: it for name, it in turn.items() if name not in names} for turn in turns]
        for turn in turns:
            if "reasoning_content" in turn:
                turn["thinking"] = turn["reasoning"] = turn["reasoning_content"]
        texts, spans = render_jinja_template(
            [turns],
            chat_template=self.template,
            **options,
            **self.tokenizer.special_tokens_map,
        )
        return texts[0], [tuple(span) for span in spans[0]] if spans else []

    def label(self, turns):
        """Return the tokens of a conversation, and which of them are trained on."""
        last = max((n for n, turn in enumerate(turns) if is_trained(turn)), default=-1)
        turns = turns[: last + 1]
        text, spans = self.render(turns, return_assistant_tokens_mask=self.marks_answers)
        if not self.marks_answers:
            spans = self.find_answers(text, turns)
        answers = [turn for turn in turns if turn["role"] == "assistant"]
        if not all(map(is_trained, answers)):
            if len(spans) != len(answers):
                sys.exit("The chat template marks answers in pieces: some cannot be left out.")
            spans = [span for span, turn in zip(spans, answers) if is_trained(turn)]
        spans = [(start, end + self.closing_length(text, end)) for start, end in spans]
        if self.ending and spans:
            start, end = spans[-1]
            text = text[:end] + self.ending
            spans[-1] = (start, len(text))
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        labels = [IGNORED] * len(ids)
        for start, end in spans:
            first = bisect_right(offsets, start, key=lambda offset: offset[1])
            after = bisect_left(offsets, end, key=lambda offset: offset[0])
            labels[first:after] = ids[first:after]
        return ids, labels

    def find_answers(self, text, turns):
        """Find the answers of a template that does not mark them: each follows its prompt."""
        spans = []
        for number, turn in enumerate(turns):
            if turn["role"] == "assistant":
                start = spans[-1][1] if spans else 0
                if number:
                    prompt = self.render(turns[:number], add_generation_prompt=True)[0]
                    start = max(start, common_length(prompt, text))
                spans.append((start, self.find_end(text, turn["content"], start)))
        return spans

    def find_end(self, text, answer, start):
        content = answer.strip()
        found = text.find(content, start)
        if content and found >= 0:
            end = found + len(content)
            spaces = answer[len(answer.rstrip()) :]
            if text.startswith(self.closing, end) or not text.startswith(spaces, end):
                return end
            return end + len(spaces)
        end = text.find(self.closing, start) if self.closing.strip() else -1
        return end if end >= 0 else len(text.rstrip())

    def closing_length(self, text, end):
        if text.endswith(self.closing, 0, end):
            return 0
        return len(next((it for it in (self.closing, self.stop) if text.startswith(it, end)), ""))


def is_trained(turn):
    return turn["role"] == "assistant" and turn.get("weight", 1) != 0


def label_text(tokenizer, text):
    """Every token of a text is trained on, and its end."""
    ids = tokenizer(text)["input_ids"]
    if ids[-1:] != [tokenizer.eos_token_id]:
        ids.append(tokenizer.eos_token_id)
    return ids, [IGNORED, *ids[1:]]


def tokenise(rows, tokenizer):
    has_turns = any("text" not in row for row in rows)
    conversations = Conversations(tokenizer) if has_turns else None
    columns = {"input_ids": [], "labels": []}
    for row in rows:
        if "text" in row:
            ids, labels = label_text(tokenizer, row["text"])
        else:
            ids, labels = conversations.label([*row["messages"], *row.get("chosen", [])])
        # The first token is never predicted.
        if any(label != IGNORED for label in labels[1:MAX_LENGTH]):
            columns["input_ids"].append(ids[:MAX_LENGTH])
            columns["labels"].append(labels[:MAX_LENGTH])
    return Dataset.from_dict(columns)


class Collator:
    """Pads a batch on the right to its longest row."""

    def __init__(self, padding):
        self.padding = padding

    def __call__(self, rows):
        ids = [torch.as_tensor(row["input_ids"]) for row in rows]
        labels = [torch.as_tensor(row["labels"]) for row in rows]
        lengths = torch.tensor([len(row) for row in ids])
        places = torch.arange(int(lengths.max()))
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.padding),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
            "attention_mask": (places < lengths[:, None]).long(),
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("--validation")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--output", default="out")
    given = parser.parse_args()
    rows = read_rows(given.train)
    train, validation = (rows, read_rows(given.validation)) if given.validation else split(rows)
    tokenizer = load_tokenizer(given.model)
    options = {} if ATTENTION is None else {"attn_implementation": ATTENTION}
    model = AutoModelForCausalLM.from_pretrained(
        given.model, dtype=WEIGHTS, use_safetensors=True, **options
    )
    arguments = SFTConfig(
        output_dir=given.output, use_cpu=not torch.cuda.is_available(), **ARGUMENTS
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=tokenise(train, tokenizer),
        eval_dataset=tokenise(validation, tokenizer),
        processing_class=tokenizer,
        data_collator=Collator(tokenizer.pad_token_id),
        peft_config=None if LORA is None else LoraConfig(**LORA),
    )
    # Every answer token of an accumulated batch counts equally, whatever the model accepts.
    trainer.model_accepts_loss_kwargs = True
    trainer.train()
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
'''


def written_for() -> str:
    """Return a sentence with the installed packages; empty without them."""
    try:
        installed = [f"{name} {version(name)}" for name in _PACKAGES]
    except PackageNotFoundError:
        return ""
    return f"\nWritten for {', '.join(installed)}."
