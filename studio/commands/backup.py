"""`studio backup` and `studio restore`: their progress and output."""

from pathlib import Path

import typer

from studio.services.operations import backup_format, backups, restores
from studio.services.operations.backups import BackupOptions
from studio.settings import Settings


def back_up(settings: Settings, to: Path, choice: BackupOptions) -> None:
    """Write a backup of the home.

    Raises:
        StudioError: as `backups.create`.

    """
    backups.require_file(settings)
    total = backups.estimate_bytes(settings, choice)
    with typer.progressbar(length=max(total, 1), label="Copying") as bar:
        manifest = backups.create(settings, to, choice, bar.update)
    typer.echo(f"Backed up {len(manifest.files)} files, {_format_bytes(manifest.bytes)}, to {to}.")
    if manifest.left_out:
        typer.echo(f"Not included: {' and '.join(manifest.left_out)}.")


def restore(settings: Settings, source: Path, *, force: bool) -> None:
    """Restore the home from a backup.

    Raises:
        StudioError: as `restores.restore`.

    """
    backups.require_file(settings)
    with backup_format.open_backup(source) as backup:
        manifest = backup.manifest
        with typer.progressbar(length=max(manifest.bytes, 1), label="Checking") as bar:
            restores.restore(backup, settings.home, force=force, on_progress=bar.update)
    typer.echo(
        f"Restored {settings.home} as of {manifest.made_at.astimezone():%Y-%m-%d %H:%M}: "
        f"{len(manifest.files)} files, {_format_bytes(manifest.bytes)}."
    )
    if manifest.left_out:
        typer.echo(f"The backup does not include {' and '.join(manifest.left_out)}.")
    if force and (replaced := restores.list_replaced(settings.home)):
        typer.echo(f"The previous content is in {replaced[-1]}. Delete it if you don't need it.")
    typer.echo(f"Start the studio: STUDIO_HOME={settings.home} studio serve")


def _format_bytes(bytes_: int) -> str:
    return f"{bytes_ / 10**6:.1f} MB" if bytes_ < 10**9 else f"{bytes_ / 10**9:.1f} GB"
