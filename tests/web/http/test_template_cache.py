"""What templates compile to, kept from one process to the next."""

from pathlib import Path

from jinja2 import DictLoader, Environment

from studio.web.rendering.render import TemplateCache


def _shown(folder: Path) -> str:
    jinja = Environment(
        loader=DictLoader({"page": "{{ 1 + 1 }}"}),
        autoescape=True,
        bytecode_cache=TemplateCache(str(folder)),
    )
    return jinja.get_template("page").render()


def test_cache_is_reused_by_next_process(tmp_path: Path) -> None:
    first = _shown(tmp_path)
    (kept,) = tmp_path.iterdir()
    written = kept.stat().st_mtime_ns

    assert (first, _shown(tmp_path)) == ("2", "2")
    assert [(path, path.stat().st_mtime_ns) for path in tmp_path.iterdir()] == [(kept, written)]


def test_damaged_cache_entry_is_rebuilt(tmp_path: Path) -> None:
    _shown(tmp_path)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])

    assert _shown(tmp_path) == "2"
    assert kept.read_bytes() == whole


def test_pages_render_without_cache_folder(tmp_path: Path) -> None:
    assert _shown(tmp_path / "gone") == "2"
