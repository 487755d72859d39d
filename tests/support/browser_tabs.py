"""Tabs of a browser as people use them."""

from playwright.sync_api import Page


def look(tab: Page, *, away: bool) -> None:
    """Turn to a tab or away from it, as its page is told by the browser."""
    tab.evaluate(
        """away => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => away });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        away,
    )
