"""vLLM's server: many requests at once on a GPU."""

from studio.engines.engine import Engine, Launch, listen_options

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The limits that vLLM accepts for the rank of adapters."""


def _command(launch: Launch) -> list[str]:
    adapter = launch.adapter
    # By the adapter's name the adapter answers; the base has a name of its own beside it.
    served = launch.name if adapter is None else f"{launch.name}-base"
    lora = []
    if adapter is not None:
        rank = next((limit for limit in _RANKS if limit >= launch.adapter_rank), _RANKS[-1])
        lora = [
            "--enable-lora",
            *("--max-lora-rank", str(rank)),
            *("--lora-modules", f"{launch.name}={adapter}"),
        ]
    return [
        *(launch.program, "serve", str(launch.path)),
        *("--served-model-name", served),
        *("--dtype", launch.dtype),
        *listen_options(launch),
        *lora,
    ]


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    summary="Answers many requests at once on a GPU.",
    formats=frozenset({"folder", "adapter"}),
    needs="models in safetensors, and LoRA adapters",
    program="vllm",
    missing_hint="Install vLLM in an environment of its own.",
    command=_command,
    # Nothing is downloaded, and nothing reported to anybody.
    environment={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
    key_variable="VLLM_API_KEY",
    start_seconds=1800,
)
