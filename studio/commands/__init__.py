"""The implementation of the `studio` commands; `studio.cli` defines their arguments."""
