"""The studio's own inference service: the model stays loaded in it."""

from studio.engines.engine import Engine

ENGINE = Engine(
    name="studio",
    title="Mantissa Studio",
    summary="Answers as in chats, with nothing to install: the model stays loaded.",
    formats=frozenset({"folder", "adapter"}),
    needs="models in safetensors, and adapters",
)
