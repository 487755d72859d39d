"""`studio recipes`: import the files of other tools, and write recipes as scripts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from studio.commands.output import JsonOption, open_studio, print_json

if TYPE_CHECKING:
    from studio.client.schemas import ImportedKey, ImportedRecipe

app = typer.Typer(
    no_args_is_help=True, help="Recipes from other tools, and as scripts that need no studio."
)

OtherFile = Annotated[
    Path,
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="A file of LLaMA-Factory, Axolotl, H2O LLM Studio, TRL or OpenAI.",
    ),
]
RecipeFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A recipe as YAML.")]
Method = Annotated[str, typer.Option(help="The method, if the file does not say the right one.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write it to this file.")
]
Model = Annotated[
    str, typer.Option(help="The folder or hub name of the model; by default the recipe's.")
]
_LISTS = {
    "mapped": "Taken over",
    "different": "Different here",
    "absent": "Not here",
    "assumed": "Not in the file: what the other tool does then",
}


@app.command("import")
def import_file(
    file: OtherFile, method: Method = "", output: Output = None, *, as_json: JsonOption = False
) -> None:
    """Make a recipe of another tool's file, and say what became of each of its settings."""
    with open_studio() as studio:
        imported = studio.import_recipe(file.read_text(encoding="utf-8"), method=method)
    if as_json:
        print_json(imported)
        return
    _print_report(imported)
    if output is not None:
        output.write_text(_to_yaml(imported), encoding="utf-8")
        typer.echo(f"Saved {output}.")


@app.command()
def script(recipe: RecipeFile, output: Output = None, model: Model = "") -> None:
    """Write a recipe as a Python script that trains the same with TRL alone."""
    from studio.commands import recipes  # noqa: PLC0415 -- heavy import
    from studio.services.recipe_scripts import scripts  # noqa: PLC0415 -- heavy import

    loaded = recipes.load_recipe(recipe, ())
    text = scripts.build(loaded, model or loaded.base_model)
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    typer.echo(f"Saved {output}.")


def _print_report(imported: "ImportedRecipe") -> None:
    typer.secho(f"{imported.tool}: {imported.method}", bold=True)
    for remark in imported.remarks:
        typer.echo(remark)
    for name, title in _LISTS.items():
        keys: list[ImportedKey] = getattr(imported, name)
        if keys:
            typer.secho(f"\n{title} ({len(keys)})", bold=True)
        for one in keys:
            typer.echo(f"  {one.key}: {one.value}{_became(one)}")


def _became(one: "ImportedKey") -> str:
    settings = ", ".join(f"{name} {value}" for name, value in one.settings.items())
    lines = [f" → {settings}" if settings else "", f"\n      {one.note}" if one.note else ""]
    return "".join(lines)


def _to_yaml(imported: "ImportedRecipe") -> str:
    """Return the recipe as YAML; what is still to be chosen is left empty."""
    import yaml  # noqa: PLC0415 -- heavy import

    required = {"base_model": "", "dataset": ""}
    values = {"method": imported.method, **required, **imported.recipe}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
