"""What stands beside a model's weights, however hostile its writer."""

import json
from pathlib import Path
from typing import Any

import pytest

from studio.errors import InvalidError
from studio.weights import model_metadata


def write(folder: Path, card: str = "", **config: Any) -> Path:  # noqa: ANN401 -- whatever a config holds
    (folder / "config.json").write_text(json.dumps(config))
    if card:
        (folder / "README.md").write_text(card)
    return folder


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n# A model\n", "apache-2.0"),
        ("---\nlicense: other\nlicense_name: llama3.2\n---\n", "llama3.2"),
        ("# No front matter\nlicense: mit\n", ""),
        ("---\nlicense: <script>alert(1)</script>\n---\n", ""),
        ("---\nlicense: [a, b]\n---\n", ""),
        ("---\na: &a [x, x]\nb: &b [*a, *a]\nlicense: mit\n---\n", ""),
        ("---\nlicense: !!python/object/apply:os.system [id]\n---\n", ""),
        ("---\n" + "[" * 20_000 + "\n---\n", ""),
    ],
)
def test_licence_comes_from_front_matter(tmp_path: Path, card: str, licence: str) -> None:
    assert model_metadata.read(write(tmp_path, card)).licence == licence


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 8192}}, 8192),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": 10**30}, None),
        ({}, None),
    ],
)
def test_context_length_comes_from_config(
    tmp_path: Path, config: dict[str, Any], context: int | None
) -> None:
    assert model_metadata.read(write(tmp_path, **config)).context_length == context


def test_chat_template_is_found_in_transformers_order(tmp_path: Path) -> None:
    write(tmp_path)
    assert model_metadata.read(tmp_path).template_file == ""
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert model_metadata.read(tmp_path).template_file == "tokenizer_config.json"
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert model_metadata.read(tmp_path).template_file == "chat_template.jinja"


def test_oversized_metadata_file_is_rejected(tmp_path: Path) -> None:
    with (tmp_path / "merges.txt").open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(InvalidError, match=r"merges\.txt is unusually large: 65 MB"):
        model_metadata.check_file_sizes(tmp_path)
