"""All style sheets in one file: a third smaller in total, and one request."""

from functools import cache

from studio.web.rendering import static_files
from studio.web.rendering.static_files import StaticFile

BUNDLE_NAME = "studio.css"

STYLESHEETS = (
    "vendor/uPlot.min.css",
    "css/tokens.css",
    "css/base.css",
    "css/layout.css",
    "css/components.css",
    "css/forms.css",
    "css/data.css",
    "css/charts.css",
    "css/compare.css",
    "css/answers.css",
    "css/token_preview.css",
    "css/table.css",
    "css/print.css",
)
"""In cascade order: within a layer, later sheets override earlier ones."""


def bundle_content() -> bytes:
    return bundle_file().content


@cache
def bundle_file() -> StaticFile:
    contents = map(static_files.shared_folder().content, STYLESHEETS)
    return static_files.make_static_file(BUNDLE_NAME, b"\n".join(contents))
