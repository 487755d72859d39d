"""The teacher that a new draft starts with."""

from collections.abc import Mapping
from typing import Any

from sqlmodel import Session

from studio.methods.base import Method
from studio.recipe.base import TEACHER_PARAM
from studio.recipe.dotted_keys import merge, nest
from studio.services.runs import teachers


def fit_teacher(db: Session, method: Method, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a draft's values with a teacher, if the method needs one and one is known."""
    section, _dot, _name = TEACHER_PARAM.partition(".")
    if section not in method.recipe.model_fields:
        return dict(values)
    teacher = teachers.suggest(db, str(values["base_model"]))
    return merge(values, nest([(TEACHER_PARAM, teacher)])) if teacher else dict(values)
