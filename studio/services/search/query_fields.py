"""Fields of a run that the run table can show, sort, group and filter by.

A field is a property of the run, a recipe setting by its dotted name (or its last part, if that is
unique), or a metric: `eval_loss` is the latest value, `eval_loss.best` the best.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, get_args, get_origin

from sqlalchemy import JSON, ColumnElement, type_coerce
from sqlmodel import col, select

from studio.db.sql_functions import seconds_between
from studio.db.states import RunStatus
from studio.db.summaries import MetricSummary
from studio.db.tables import Run
from studio.methods import METHODS, METRICS, direction
from studio.recipe.fields import Section, field_spec, section_types
from studio.services.estimates import run_progress

FieldKind = Literal["words", "choice", "number", "flag", "moment", "span", "tags", "curve"]
SummariesByMetric = Mapping[str, MetricSummary]
"""Summaries of a run's metrics, by metric key."""

FORMS = ("last", "best", "min", "max", "smoothed", "mean10", "mean100", "curve")
"""Forms in which a metric can be shown. `best` needs a metric whose better direction is known."""

_DIRECTED_METRICS = frozenset(key for key in METRICS if direction(key))
_SUMMARY_COLUMNS = {
    "last": "last",
    "min": "least",
    "max": "greatest",
    "smoothed": "smoothed",
    "mean10": "mean10",
    "mean100": "mean100",
    "curve": "count",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    name: str
    kind: FieldKind
    value: ColumnElement[Any]
    """The SQL expression to sort, group and compare by."""
    read: Callable[[Run, SummariesByMetric], Any]
    """Returns the value to show for a run."""
    title: str = ""
    """Empty for metrics: pages format their names."""
    key: str = ""
    """The key of its metric, if it is one."""
    form: str = ""
    choices: tuple[str, ...] = ()

    @property
    def is_number(self) -> bool:
        return self.kind in {"number", "span"}


def find(name: str, metric_keys: Collection[str]) -> Field | None:
    """Return the field with a name; `metrics` are the metrics that runs have reported."""
    plain = _ALIASES.get(name, name)
    return (
        _RUN_FIELDS.get(plain)
        or recipe_fields().get(plain)
        or _short_names().get(plain)
        or _metric_field(plain, metric_keys)
    )


def list_names(metric_keys: Collection[str]) -> list[str]:
    """Return all names, the most useful first."""
    metrics = sorted({*metric_keys, *_DIRECTED_METRICS})
    forms = (f"{key}.{form}" for key in metrics for form in _metric_forms(key))
    return [*_RUN_FIELDS, *metrics, *recipe_fields(), *forms]


@cache
def recipe_fields() -> dict[str, Field]:
    """Return the settings of all methods' recipes, by their dotted names."""
    fields: dict[str, Field] = {}
    for field in (
        field for method in METHODS.values() for field in _recipe_settings(method.recipe)
    ):
        earlier = fields.get(field.name, field)
        # Variants of a section, and methods, may have different choices.
        choices = tuple(dict.fromkeys((*earlier.choices, *field.choices)))
        fields[field.name] = replace(field, choices=choices)
    return fields


def setting_names() -> frozenset[str]:
    """Return the names of the fields that the recipe determines."""
    return frozenset({*recipe_fields(), "model", "dataset", "method", "precision"})


def metric_direction(key: str) -> int:
    """Return -1 if lower is better, 1 if higher is better, 0 if unknown."""
    return {"lower": -1, "higher": 1, "": 0}[direction(key)]


def _metric_field(name: str, metric_keys: Collection[str]) -> Field | None:
    key, dot, form = name.rpartition(".")
    if not dot or form not in FORMS:
        key, form = name, "last"
    if key not in metric_keys and key not in _DIRECTED_METRICS:
        return None
    if form == "best" and not metric_direction(key):
        return None
    column = _summary_column(key, form)
    of_run = (col(MetricSummary.run_id) == col(Run.id), col(MetricSummary.key) == key)
    return Field(
        name=name,
        kind="curve" if form == "curve" else "number",
        value=select(col(getattr(MetricSummary, column))).where(*of_run).scalar_subquery(),
        read=partial(_metric_value, key, "curve" if form == "curve" else column),
        key=key,
        form=form,
    )


def _summary_column(key: str, form: str) -> str:
    if form == "best":
        return "least" if metric_direction(key) < 0 else "greatest"
    return _SUMMARY_COLUMNS[form]


def build_condition(
    field: Field, compared: Callable[[ColumnElement[Any]], Any]
) -> ColumnElement[bool]:
    """Return the SQL condition that a field's value satisfies; metrics use their index."""
    if not field.key:
        holds: ColumnElement[bool] = compared(field.value)
        return holds
    column: Any = col(getattr(MetricSummary, _summary_column(field.key, field.form)))
    conditions = (col(MetricSummary.key) == field.key, compared(column))
    return col(Run.id).in_(select(MetricSummary.run_id).where(*conditions))


def _metric_value(key: str, column: str, _run: Run, summaries: SummariesByMetric) -> Any:  # noqa: ANN401 -- a number or a curve
    summary = summaries.get(key)
    if summary is None:
        return None
    if column == "curve":
        return summary
    if column == "last" and summary.non_finite:
        return float(summary.non_finite)
    return getattr(summary, column)


def _metric_forms(key: str) -> Iterator[str]:
    return (form for form in FORMS if form != "last" and (form != "best" or metric_direction(key)))


@cache
def _recipe_settings(section: type[Section], path: tuple[str, ...] = ()) -> tuple[Field, ...]:
    """Return the fields of a section, which many methods share."""
    return tuple(_iter_recipe_settings(section, path))


def _iter_recipe_settings(section: type[Section], path: tuple[str, ...]) -> Iterator[Field]:
    for name, info in section.model_fields.items():
        sections = section_types(info.annotation)
        for subsection in sections:
            yield from _recipe_settings(subsection, (*path, name))
        spec = field_spec(info)
        label = spec.label if spec else name.capitalize()
        if not sections and name != "version":
            field = _setting_field((*path, name), info.annotation, label)
            if field:
                yield field


def _setting_field(path: tuple[str, ...], annotation: object, label: str) -> Field | None:
    kinds = [option for option in _type_options(annotation) if option is not type(None)]
    stored = type_coerce(col(Run.recipe), JSON)[path]
    name = ".".join(path)
    make = partial(Field, name=name, read=partial(_recipe_value, name), title=label)
    if get_origin(kinds[0]) is Literal:
        return make(kind="choice", value=stored.as_string(), choices=get_args(kinds[0]))
    if kinds[0] is bool:
        return make(kind="flag", value=stored.as_boolean())
    if set(kinds) <= {int, float}:
        return make(kind="number", value=stored.as_float())
    return make(kind="words", value=stored.as_string()) if kinds[0] is str else None


def _type_options(annotation: object) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal or not get_args(annotation):
        return (annotation,)
    return get_args(annotation)


def _recipe_value(name: str, run: Run, _sums: SummariesByMetric) -> Any:  # noqa: ANN401 -- any value of a recipe
    value: Any = run.recipe
    for part in name.split("."):
        value = getattr(value, part, None)  # Other adapter kinds have other settings.
    return value


@cache
def _short_names() -> dict[str, Field]:
    """Return the settings whose last part is unique and names no metric, by that part."""
    counts = Counter(name.rpartition(".")[2] for name in recipe_fields())
    fields = {name.rpartition(".")[2]: field for name, field in recipe_fields().items()}
    unique = (leaf for leaf, count in counts.items() if count == 1)
    return {leaf: fields[leaf] for leaf in unique if leaf not in _DIRECTED_METRICS}


def _run_field(name: str, kind: FieldKind, value: Any, title: str, **options: Any) -> Field:  # noqa: ANN401 -- a column of any type
    return Field(
        name=name,
        kind=kind,
        value=value,
        read=lambda run, _sums: getattr(run, options.get("attribute", name)),
        title=title,
        choices=options.get("choices", ()),
    )


def _recipe_alias(name: str, key: str, title: str) -> Field:
    return replace(recipe_fields()[key], name=name, title=title)


_RUN_FIELDS: dict[str, Field] = {
    one.name: one
    for one in (
        _run_field("name", "words", col(Run.name), "Name"),
        _run_field("status", "choice", col(Run.status), "Status", choices=tuple(RunStatus)),
        _run_field("tag", "tags", col(Run.tags), "Tags", attribute="tags"),
        _run_field("notes", "words", col(Run.notes), "Notes"),
        _recipe_alias("model", "base_model", "Model"),
        _recipe_alias("dataset", "dataset", "Dataset"),
        _recipe_alias("method", "method", "Method"),
        _recipe_alias("precision", "precision", "Precision"),
        _run_field("created", "moment", col(Run.created_at), "Created", attribute="created_at"),
        _run_field("finished", "moment", col(Run.finished_at), "Finished", attribute="finished_at"),
        Field(
            name="duration",
            kind="span",
            value=seconds_between(col(Run.claimed_at), col(Run.finished_at)),
            read=lambda run, _sums: run_progress.measure(run).total_seconds,
            title="Duration",
        ),
        _run_field("step", "number", col(Run.step), "Step"),
        _run_field("tokens", "number", col(Run.tokens), "Tokens"),
        _run_field("epoch", "number", col(Run.epoch), "Epoch"),
        _run_field("error", "words", col(Run.error_code), "Error", attribute="error_code"),
        _run_field(
            "experiment", "number", col(Run.experiment_id), "Experiment", attribute="experiment_id"
        ),
        _run_field("study", "number", col(Run.study_id), "Study", attribute="study_id"),
        _run_field("id", "number", col(Run.id), "Run number"),
    )
}
_ALIASES = {
    "tags": "tag",
    "base_model": "model",
    "data": "dataset",
    "number": "id",
    "note": "notes",
}
