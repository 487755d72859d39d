"""What engines are started with, and where their programs are looked for."""

from pathlib import Path

import pytest

from studio.engines import ENGINES
from studio.engines.engine import Launch
from studio.errors import UnavailableError
from studio.settings import Settings

GGUF = Launch(program="/bin/llama-server", name="pets", path=Path("/m/model.gguf"), port=4711)
FOLDER = Launch(program="vllm", name="pets", path=Path("/m"), dtype="bfloat16", port=4711)
LISTENS = ["--host", "127.0.0.1", "--port", "4711"]


def test_llama_cpp_serves_one_file_on_this_machine_alone() -> None:
    command = ENGINES["llama.cpp"].command(GGUF)

    assert command[:5] == ["/bin/llama-server", "--model", "/m/model.gguf", "--alias", "pets"]
    assert command[5:] == [*LISTENS, "--no-webui", "--jinja"]


def test_vllm_serves_a_folder_in_the_format_of_its_run() -> None:
    command = ENGINES["vllm"].command(FOLDER)

    assert command[:3] == ["vllm", "serve", "/m"]
    assert command[3:7] == ["--served-model-name", "pets", "--dtype", "bfloat16"]
    assert command[7:] == LISTENS


@pytest.mark.parametrize(
    ("rank", "limit"), [(4, "8"), (8, "8"), (12, "16"), (65, "128"), (1024, "512")]
)
def test_adapter_answers_by_the_name_of_the_endpoint(rank: int, limit: str) -> None:
    launch = Launch(
        program="vllm",
        name="pets",
        path=Path("/base"),
        adapter=Path("/adapter"),
        adapter_rank=rank,
        port=4711,
    )
    command = ENGINES["vllm"].command(launch)

    assert command[3:5] == ["--served-model-name", "pets-base"]
    assert command[-5:] == [
        *("--enable-lora", "--max-lora-rank", limit),
        *("--lora-modules", "pets=/adapter"),
    ]


@pytest.mark.parametrize("name", ["llama.cpp", "vllm"])
def test_missing_program_is_explained_with_its_setting(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ENGINES[name]
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UnavailableError) as caught:
        engine.find_program(Settings())
    assert caught.value.message.startswith(f"{engine.title} was not found: there is no program ")
    assert f"STUDIO_{(engine.program or '').upper()}" in caught.value.hint


def test_program_is_found_by_path_and_in_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "llama-server"
    engine = ENGINES["llama.cpp"]
    with pytest.raises(UnavailableError) as caught:
        engine.find_program(Settings(llama_server=str(program)))
    assert "STUDIO_LLAMA_SERVER" in caught.value.hint

    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert engine.find_program(Settings(llama_server=str(program))) == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert engine.find_program(Settings()) == str(program)
