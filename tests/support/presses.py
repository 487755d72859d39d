"""What a person presses on a page, counted."""

from pathlib import Path

from playwright.sync_api import Locator, Page


class Presser:
    """Presses what a person presses, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def press(self, target: Locator) -> None:
        target.click()
        self.count += 1

    def choose_file(self, page: Page, file: Path) -> None:
        """Press where a file is dropped or chosen, and choose it."""
        with page.expect_file_chooser() as chooser:
            self.press(page.locator(".drop-zone"))
        chooser.value.set_files(file)
        self.count += 1


def write_csv(file: Path, header: str) -> Path:
    """Write a file as people bring them: forty rows of two columns."""
    rows = "".join(f"Say number {i} please,It is {i}.\n" for i in range(40))
    file.write_text(f"{header}\n{rows}")
    return file
