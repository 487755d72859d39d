"""Heavy packages, loaded with the first file that needs them, charged to no file's time limit."""

from functools import cache
from importlib import import_module

from studio.intake.files.limits import exempt_from_deadlines


@cache
def load_arrow() -> None:
    """Load Arrow, and what it loads with its first array: pandas, if that is installed."""
    with exempt_from_deadlines():
        for name in ("pyarrow.compute", "pyarrow.parquet"):
            import_module(name)
        import_module("pyarrow").array([])


@cache
def load_encoding_detectors() -> None:
    """Load what guesses encodings, and the statistics that the first guess of each loads."""
    sample = "Le café a été livré à l'été.".encode("cp1252")
    with exempt_from_deadlines():
        import_module("chardet").detect_all(sample)
        import_module("charset_normalizer").from_bytes(sample).best()


@cache
def load_excel() -> None:
    """Load what reads Excel workbooks."""
    with exempt_from_deadlines():
        import_module("openpyxl")
