"""The engines that can serve a model: each is one row of a table, in a module of its own."""

from collections.abc import Mapping

from studio.engines import llama_cpp, studio_engine, vllm
from studio.engines.engine import Engine

ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (studio_engine.ENGINE, llama_cpp.ENGINE, vllm.ENGINE)
}
"""By name, the one to suggest first where it can serve a model."""
