"""Write `docs/benchmarks.md`: what `make bench` last measured, and how it has changed.

`python -m tests.bench.page` reads the files of `bench/`. Each part is a table; ratios, which
machines change least, are drawn as bars as well.
"""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tests.bench.measurement import Measurement
from tests.bench.record import ROOT, Record, load_all

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 3
"""How many commits a table shows, the newest first."""

RATIO = "x"
"""The unit of ratios. They are drawn, with a line at 1."""

_HEAD = """# Benchmarks

`make bench` measures these figures, each beside what it is compared with, on the machine named
above its table. `make bench-peers` measures other tools in the same way. `bench/` has the figures
of each commit; this page shows the last ones, the newest first. Another machine gives other
seconds: compare ratios, or measure both commits on yours.
"""

_WIDTH, _ROW, _LABELS, _RIGHT = 720, 26, 380, 70
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2933}rect{fill:#0f766e}line{stroke:#9aa5b1}"
    "@media(prefers-color-scheme:dark){text{fill:#e4e7eb}rect{fill:#2dd4bf}line{stroke:#616e7c}}"
)


def main() -> None:
    records = load_all()
    for part in _parts(records):
        newest = _having(records, part)[0]
        if ratios := [one for one in newest.parts[part] if one.unit == RATIO]:
            _picture(part).write_text(draw(ratios), encoding="utf-8")
    PAGE.write_text(write_page(records), encoding="utf-8")


def write_page(records: Sequence[Record]) -> str:
    """Return the page in Markdown."""
    return "\n".join([_HEAD, *(_section(_having(records, part), part) for part in _parts(records))])


def draw(ratios: Sequence[Measurement]) -> str:
    """Return bars of ratios as SVG: a line stands at 1, and the largest fills the width."""
    scale = (_WIDTH - _LABELS - _RIGHT) / max(1.0, *(one.value for one in ratios))
    height = _ROW * len(ratios) + 8
    one_at = _LABELS + scale
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        *(line for i, ratio in enumerate(ratios) for line in _bar(ratio, 4 + i * _ROW, scale)),
        f'<line x1="{one_at:.1f}" x2="{one_at:.1f}" y1="0" y2="{height}"/>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar(ratio: Measurement, top: int, scale: float) -> Iterator[str]:
    length = ratio.value * scale
    middle = top + _ROW // 2
    name = escape(ratio.name.strip())
    yield f'<text x="{_LABELS - 8}" y="{middle + 4}" text-anchor="end">{name}</text>'
    yield f'<rect x="{_LABELS}" y="{top + 4}" width="{length:.1f}" height="{_ROW - 8}"/>'
    yield f'<text x="{_LABELS + length + 6:.1f}" y="{middle + 4}">{ratio.value:.2f}</text>'


def _section(records: Sequence[Record], part: str) -> str:
    shown = records[:COLUMNS]
    newest = shown[0]
    heads = [f"{one.commit[:8]}, {one.day}" for one in shown]
    lines = [f"## {_title(part)}", "", f"Measured on: {newest.machines[part]}", ""]
    if any(one.unit == RATIO for one in newest.parts[part]):
        lines += [f"![Ratios: {_title(part)}](pictures/{_picture(part).name})", ""]
    lines += [f"| | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    lines += [_row(figure, part, shown) for figure in newest.parts[part]]
    return "\n".join([*lines, ""])


def _row(figure: Measurement, part: str, records: Sequence[Record]) -> str:
    cells = []
    for record in records:
        same = [one for one in record.parts[part] if one.name == figure.name]
        cells.append(_value(same[0]) if same else "")
    return f"| {figure.name.strip()} | {' | '.join(cells)} |"


def _value(figure: Measurement) -> str:
    digits = 0 if abs(figure.value) >= 1000 else 3 if abs(figure.value) < 1 else 2
    return f"{figure.value:,.{digits}f} {figure.unit}".strip()


def _having(records: Sequence[Record], part: str) -> list[Record]:
    """Return the records that hold a part, the newest first."""
    return [one for one in reversed(records) if part in one.parts]


def _parts(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(part for one in reversed(records) for part in one.parts))


def _title(part: str) -> str:
    return part.replace("_", " ").capitalize()


def _picture(part: str) -> Path:
    return PICTURES / f"bench-{part.replace('_', '-')}.svg"


if __name__ == "__main__":
    main()
