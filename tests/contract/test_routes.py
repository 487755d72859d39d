"""The addresses of the studio: of two routes at one address, the second is never reached."""

import re
from collections import Counter

from studio.web.app import API, PAGES


def test_every_route_has_unique_path() -> None:
    found = Counter(
        (method, re.sub(r"{[^}]*}", "{}", getattr(route, "path", "")))
        for router in (*PAGES, *API)
        for route in router.routes
        for method in getattr(route, "methods", None) or ()
    )
    assert len(found) > 100
    assert [address for address, count in found.items() if count > 1] == []
