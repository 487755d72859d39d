"""llama.cpp's server, for GGUF files: quantised models on CPUs and GPUs."""

from studio.engines.engine import Engine, Launch, listen_options


def _command(launch: Launch) -> list[str]:
    return [
        launch.program,
        *("--model", str(launch.path)),
        *("--alias", launch.name),
        *listen_options(launch),
        "--no-webui",
        # The chat template of the file, as the model was trained with it.
        "--jinja",
    ]


ENGINE = Engine(
    name="llama.cpp",
    title="llama.cpp",
    summary="Fast on CPUs and small GPUs, with quantised weights.",
    formats=frozenset({"gguf"}),
    needs="GGUF files",
    program="llama_server",
    missing_hint="Install llama.cpp so that llama-server is in PATH.",
    command=_command,
    key_variable="LLAMA_API_KEY",
)
