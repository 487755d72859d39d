"""The tools whose files can be imported, one table each. To add one, add its module to the list."""

from collections.abc import Mapping

from studio.services.recipe_imports.table import Tool
from studio.services.recipe_imports.tools.axolotl import AXOLOTL
from studio.services.recipe_imports.tools.h2o import H2O
from studio.services.recipe_imports.tools.llama_factory import LLAMA_FACTORY
from studio.services.recipe_imports.tools.openai import OPENAI
from studio.services.recipe_imports.tools.trl import TRL

TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in (LLAMA_FACTORY, AXOLOTL, H2O, TRL, OPENAI)}
