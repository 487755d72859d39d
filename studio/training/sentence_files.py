"""The files by which sentence-transformers loads a model that gives vectors.

Their form is that of its versions 2 to 5, which version 6 reads, too.
"""

import json
from pathlib import Path

from transformers import PreTrainedConfig

from studio.recipe.vectors import MODULE_NAMES, Vectors
from studio.weights import encoders

_MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
"""The folders of its modules, of which only the second has settings, and their classes."""


def write(folder: Path, vectors: Vectors, config: PreTrainedConfig, max_length: int) -> None:
    """Write what sentence-transformers needs besides the weights and the tokenizer.

    Texts are read up to `max_length` tokens, as in training.
    """
    limit = encoders.max_tokens(config.to_dict())
    _write_json(
        folder / "modules.json",
        [
            {
                "idx": place,
                "name": str(place),
                "path": path,
                "type": f"sentence_transformers.models.{name}",
            }
            for place, (path, name) in enumerate(_MODULES)
        ],
    )
    _write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": min(max_length, limit or max_length), "do_lower_case": False},
    )
    _write_json(
        folder / "config_sentence_transformers.json",
        {
            "prompts": {"query": vectors.query_prompt, "document": vectors.passage_prompt},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )
    modes = {f"pooling_mode_{name}": mode == vectors.pooling for mode, name in MODULE_NAMES.items()}
    width = config.get_text_config().hidden_size
    (folder / "1_Pooling").mkdir()
    _write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": width, **modes, "include_prompt": True},
    )


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
