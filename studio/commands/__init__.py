"""What each command of `studio` does; `studio.cli` says how it is called."""
