"""Tabs of a browser as people use them."""

from playwright.sync_api import Page


def look(tab: Page, *, away: bool) -> None:
    """Show or hide a tab, as the browser reports it to the page."""
    tab.evaluate(
        """away => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => away });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        away,
    )
