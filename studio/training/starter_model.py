"""Build the starter: a small base model and its tokenizer, without network access.

It is pretrained on plain prose and a little small talk (`studio.starter`), so it writes sentences
but does not answer questions. The starter's instruction rows teach it that.
"""

import argparse
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch.optim.lr_scheduler import OneCycleLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from studio.hardware import detect
from studio.starter import END, PAD, ROLES, START, pretraining_documents

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('The starter has no role named ' + message.role + '.') }}
    {%- endif %}
    {{- '<|' + message.role + '|>' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content + eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}"""

VOCABULARY = 2048
SEED = 7
STEPS = 180
LOG_EVERY = 10
BATCH = 16
LENGTH = 64
PEAK_LEARNING_RATE = 3e-3
COPY_GAIN = 1.5

log = logging.getLogger(__name__)


def build(folder: Path) -> None:
    """Build the starter model in `folder`, completely or not at all; keep an existing one.

    A concurrent caller waits until the model is complete and then uses it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _build_lock(folder.parent):
        if folder.exists():
            log.info("The starter is already in %s.", folder)
            return
        _write_model(folder)
    log.info("Saved the starter in %s.", folder)


def _write_model(folder: Path) -> None:
    with TemporaryDirectory(dir=folder.parent, prefix=".starter-") as scratch:
        unfinished = Path(scratch) / "model"
        tokenizer = train_tokenizer()
        tokenizer.save_pretrained(unfinished)
        train_model(tokenizer).save_pretrained(unfinished)
        unfinished.rename(folder)


@contextmanager
def _build_lock(parent: Path) -> Iterator[None]:
    """Lock the parent folder itself, so that no lock file is left next to the model."""
    handle = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def train_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    # Makes a word at the start of an answer the same token as inside a sentence.
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pretraining_documents(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        additional_special_tokens=ROLES,
        chat_template=CHAT_TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def train_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    batches = _batches(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(_config(tokenizer))
        log.info("Pre-training %d parameters for %d steps.", model.num_parameters(), STEPS)
        _initialise_attention_to_copy(model)
        _pretrain(model, batches)
    return model


def _config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.05,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def _initialise_attention_to_copy(model: LlamaForCausalLM) -> None:
    """Initialise attention so that each block passes on the tokens it attends to, unchanged.

    Copying a name from question to answer then only requires learning where to attend. From a
    random start, the same skill needs some thousand steps more than the budget allows.
    """
    for layer in model.model.layers:
        value, output = layer.self_attn.v_proj.weight, layer.self_attn.o_proj.weight
        torch.nn.init.orthogonal_(value, gain=COPY_GAIN)
        output.data.copy_(value.data.T)


def _pretrain(model: LlamaForCausalLM, batches: torch.Tensor) -> None:
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05, fused=True
    )
    schedule = OneCycleLR(optimiser, PEAK_LEARNING_RATE, total_steps=STEPS, pct_start=0.15)
    # bfloat16 is twice as fast if the CPU has the instructions and many times slower if not: most
    # CPUs with AVX-512 lack them.
    half = detect().native_bf16
    model.train()
    for step, batch in enumerate(batches, start=1):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % LOG_EVERY == 0 or step == STEPS:
            log.info("Step %d of %d, loss %.2f.", step, STEPS, loss.item())
    model.eval()


def _batches(tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Split the concatenated text into `STEPS` batches of `BATCH` pieces of `LENGTH` tokens."""
    needed = STEPS * BATCH * LENGTH
    documents = tokenizer(list(pretraining_documents()))["input_ids"]
    stream = list(islice((token for document in documents for token in document), needed))
    return torch.tensor(stream).view(STEPS, BATCH, LENGTH)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m studio.training.starter_model", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="folder to create")
    build(parser.parse_args().folder)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
