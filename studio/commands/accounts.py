"""`studio accounts`: who may use the studio, from the machine it runs on."""

from typing import Annotated, Literal

import typer

app = typer.Typer(no_args_is_help=True, help="People with an account: add, list, link, remove.")

Name = Annotated[str, typer.Argument(help="What somebody signs in as.")]
AsRole = Annotated[
    Literal["administrator", "member", "viewer"],
    typer.Option(help="What they may do: see, work, or administer."),
]


@app.command()
def add(name: Name, role: AsRole = "member") -> None:
    """Add somebody. Print the link by which they choose a password."""
    from studio.commands import account_actions  # noqa: PLC0415 -- heavy import
    from studio.db.accounts import Role  # noqa: PLC0415 -- heavy import

    account_actions.add(name, Role(role))


@app.command("list")
def list_accounts() -> None:
    """Name everybody, and what they may do."""
    from studio.commands import account_actions  # noqa: PLC0415 -- heavy import

    account_actions.print_accounts()


@app.command()
def link(name: Name) -> None:
    """Print a link by which somebody chooses a new password."""
    from studio.commands import account_actions  # noqa: PLC0415 -- heavy import

    account_actions.link(name)


@app.command()
def remove(name: Name) -> None:
    """Remove somebody; what they made becomes everyone's."""
    from studio.commands import account_actions  # noqa: PLC0415 -- heavy import

    account_actions.remove(name)
