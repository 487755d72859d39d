"""`studio accounts`: manage accounts on the machine that the studio runs on."""

from typing import Annotated, Literal

import typer

app = typer.Typer(no_args_is_help=True, help="Manage accounts: add, list, link, remove.")

Name = Annotated[str, typer.Argument(help="The name to sign in with.")]
AsRole = Annotated[
    Literal["administrator", "member", "viewer"],
    typer.Option(help="The role: viewers see, members work, administrators manage."),
]


@app.command()
def add(name: Name, role: AsRole = "member") -> None:
    """Add an account and print a link to choose its password."""
    from studio.commands import account_actions  # noqa: PLC0415 -- heavy import
    from studio.db.accounts import Role  # noqa: PLC0415 -- heavy import

    account_actions.add(name, Role(role))


@app.command("list")
def list_accounts() -> None:
    """List accounts and their roles."""
    from studio.commands import account_actions  # noqa: PLC0415 -- heavy import

    account_actions.print_accounts()


@app.command()
def link(name: Name) -> None:
    """Print a link to choose a new password."""
    from studio.commands import account_actions  # noqa: PLC0415 -- heavy import

    account_actions.link(name)


@app.command()
def remove(name: Name) -> None:
    """Remove an account; its runs and other things then belong to everyone."""
    from studio.commands import account_actions  # noqa: PLC0415 -- heavy import

    account_actions.remove(name)
