"""A desk that lives: its socket and its process on a folder, and models small enough to ask for."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from studio.protocols import tokenizer_service as line
from studio.settings import Settings
from studio.worker.socket_services import SocketService

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>")


def write_model(folder: Path, template: str = CHATML) -> Path:
    """Write a tokenizer of single bytes, and a config beside it; there are no weights."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(SPECIAL))
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    config = {"model_type": "llama", "vocab_size": 258, "hidden_size": 64, "num_hidden_layers": 1}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@contextmanager
def run_tokenizer_service(settings: Settings) -> Iterator[SocketService]:
    """Tend a desk as a worker does, tick after tick, until the test is through with it."""
    desk, stop = SocketService(line.socket_path(settings.home), line.MODULE), threading.Event()
    desk.tick()

    def tick() -> None:
        while not stop.wait(0.02):
            desk.tick()

    ticks = threading.Thread(target=tick)
    ticks.start()
    try:
        yield desk
    finally:
        stop.set()
        ticks.join()
        desk.close()
