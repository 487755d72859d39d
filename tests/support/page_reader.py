"""Reads a page as a person would: by heading, by field, by row."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "input", "br", "path", "rect", "img"})


@dataclass(slots=True)
class Node:
    tag: str
    attributes: dict[str, str]
    parts: list["Node | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All words inside, single spaces between them."""
        inside = [part if isinstance(part, str) else part.text for part in self.parts]
        return " ".join(" ".join(inside).split())

    def all(self, tag: str = "", **attributes: str) -> list["Node"]:
        """Return the nodes inside by tag and attributes; `class_` is one of its classes."""
        found: list[Node] = []
        for part in self.parts:
            if isinstance(part, Node):
                found += [part] if part.matches(tag, attributes) else []
                found += part.all(tag, **attributes)
        return found

    def one(self, tag: str = "", **attributes: str) -> "Node":
        (found,) = self.all(tag, **attributes)
        return found

    def matches(self, tag: str, attributes: dict[str, str]) -> bool:
        return tag in {"", self.tag} and all(
            value in self.attributes.get("class", "").split()
            if name == "class_"
            else self.attributes.get(name) == value
            for name, value in attributes.items()
        )


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.path = [Node("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.path[-1].parts.append(node)
        if tag not in VOID:
            self.path.append(node)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.path.pop().tag == tag, f"</{tag}> closes what it did not open"

    def handle_data(self, data: str) -> None:
        self.path[-1].parts.append(data)


def parse_page(html: str) -> Node:
    """Return the page as a tree; every tag must be closed where it was opened."""
    reader = _Reader()
    reader.feed(html)
    (page,) = reader.path
    return page


def form_fields(form: Node) -> list[tuple[str, str]]:
    """Return what a browser would send for a form as it stands."""
    pairs: list[tuple[str, str]] = []
    for control in form.all():
        name = control.attributes.get("name", "")
        if not name or "disabled" in control.attributes:
            continue
        pairs += [(name, value) for value in _values(control)]
    return pairs


def field_value(form: Node, name: str) -> str:
    """Return the value of a field; of a checkbox or a radio the one that is sent."""
    return dict(form_fields(form))[name]


def field_error(page: Node, name: str) -> str:
    """Return what is said to be wrong with a field, or nothing."""
    found = page.all(id=f"{name.replace('.', '-')}-problem")
    return found[0].text if found else ""


def _values(control: Node) -> list[str]:
    attributes = control.attributes
    if control.tag == "textarea":
        return [control.text]
    if control.tag == "select":
        options = control.all("option")
        chosen = [one for one in options if "selected" in one.attributes] or options[:1]
        return [one.attributes.get("value", one.text) for one in chosen]
    if attributes.get("type") in {"radio", "checkbox"} and "checked" not in attributes:
        return []
    return [attributes.get("value", "")] if control.tag == "input" else []
