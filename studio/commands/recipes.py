"""Load recipe files and apply changes from the command line."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from studio.errors import InvalidError
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.recipe import yaml
from studio.recipe.dotted_keys import merge, nest
from studio.schemas.validation_errors import field_errors


def load_recipe(file: Path, changes: Sequence[str]) -> AnyRecipe:
    """Read a recipe file and apply `key=value` changes.

    Raises:
        InvalidError: the file is not a valid recipe, or a change is malformed.

    """
    values = yaml.load(file.read_text(encoding="utf-8"))
    pairs = [change.partition("=") for change in changes]
    if malformed := [key for key, sign, _value in pairs if not sign]:
        raise InvalidError(f"{malformed[0]} is not a valid change.", hint="Write --set key=value.")
    changed = merge(values, nest((key, value) for key, _sign, value in pairs))
    try:
        return RECIPE_ADAPTER.validate_python(changed, strict=False)
    except ValidationError as error:
        messages = [f"  {field}" for field in field_errors(error.errors(), AnyRecipe)]
        raise InvalidError(f"{file} is not a valid recipe:\n" + "\n".join(messages)) from error
