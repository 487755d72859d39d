"""The starter's base model and tokenizer: pretrained on plain prose and a little small talk.

It writes sentences but does not answer questions. The starter's instruction rows teach it that.

The shipped weights were made with torch 2.13 on a CPU with bfloat16 instructions, in seven
minutes on two busy cores. Another machine makes others, as good.
"""

import hashlib
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch.optim.lr_scheduler import OneCycleLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from studio.hardware import detect
from studio.starter import WEIGHTS
from tests.tools.starter import pretraining_text
from tests.tools.starter.pretraining_text import END, PAD, ROLES, START

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
VOCABULARY_DOCUMENTS = 6000
SEED = 7
STEPS = 1000
BATCH = 16
LENGTH = 128
PEAK_LEARNING_RATE = 3e-3
COPY_GAIN = 1.5
LOG_EVERY = 50

log = logging.getLogger(__name__)


def write(folder: Path) -> None:
    """Train the model, and write it as it is shipped: with bfloat16 weights."""
    tokenizer = train_tokenizer()
    tokenizer.save_pretrained(folder)
    model = train(tokenizer)
    model.save_pretrained(folder)
    weights = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    del weights["lm_head.weight"]  # tied to the embedding
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


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
    documents = islice(pretraining_text.documents(), VOCABULARY_DOCUMENTS)
    tokenizer.train_from_iterator(documents, trainer)
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


def train(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    batches = _batches(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config(tokenizer))
        _initialise_attention_to_copy(model)
        _pretrain(model, batches)
    return model


def config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
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
        dtype="float32",
    )


def fingerprint() -> str:
    """Return the checksum of everything that determines the weights, but for rounding errors."""
    digest = hashlib.sha256()
    settings = (SEED, STEPS, BATCH, LENGTH, PEAK_LEARNING_RATE, COPY_GAIN, VOCABULARY_DOCUMENTS)
    digest.update(repr(settings).encode())
    for document in islice(pretraining_text.documents(), VOCABULARY_DOCUMENTS):
        digest.update(document.encode())
    return digest.hexdigest()


def _initialise_attention_to_copy(model: LlamaForCausalLM) -> None:
    """Initialise attention so that each block passes on the tokens it attends to, unchanged.

    Copying a name from question to answer then only requires learning where to attend. From a
    random start, the same skill needs some thousand steps more.
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
    # bfloat16 is twice as fast if the CPU has the instructions and many times slower if not.
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
    stream = list(islice(_tokens(tokenizer), STEPS * BATCH * LENGTH))
    return torch.tensor(stream).view(STEPS, BATCH, LENGTH)


def _tokens(tokenizer: PreTrainedTokenizerFast) -> Iterator[int]:
    documents = pretraining_text.documents()
    while True:
        for tokens in tokenizer(list(islice(documents, 1000)))["input_ids"]:
            yield from tokens
