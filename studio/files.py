"""Write files atomically, and sync files and folders to disk."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a text file next to its place, then move it there: readers never see half of it."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def sync(path: Path) -> None:
    """Sync a file, or a folder's directory entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Sync everything in a folder, then the folder itself, to disk."""
    for path in folder.iterdir():
        if path.is_dir():
            sync_folder(path)
        else:
            sync(path)
    sync(folder)
