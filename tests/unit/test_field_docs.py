"""The texts under fields, which pages and the API's document show."""

from pydantic import BaseModel, Field

from studio.schemas.field_docs import FieldDocs, field_descriptions


class _Base(FieldDocs, BaseModel):
    first: int
    """Counted
    from one."""
    second: int
    third: int = Field(default=0, description="Said here.")
    """Not here."""


class _Own(_Base):
    second: int
    """Told
    later."""


def test_field_docstrings_are_found_and_inherited() -> None:
    assert field_descriptions(_Own) == {
        "first": "Counted\nfrom one.",
        "second": "Told\nlater.",
        "third": "Not here.",
    }


def test_schema_description_prefers_explicit_field_description() -> None:
    told = {
        name: field.get("description")
        for name, field in _Own.model_json_schema()["properties"].items()
    }

    assert told == {"first": "Counted\nfrom one.", "second": "Told\nlater.", "third": "Said here."}
