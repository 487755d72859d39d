"""The metrics of models that read a text and write none."""

from studio.evaluation import reading_scores
from studio.evaluation.evaluation_metric import EvaluationMetric, signed
from studio.evaluation.rows import AnswerKind

_STEPS = "over:steps read|threshold:0.5"


def _log_loss(key: str, kind: AnswerKind) -> EvaluationMetric:
    return EvaluationMetric(
        key=key,
        kind=kind,
        title="Log loss",
        unit="nats",
        better="lower",
        note="How surprising the right answers are to the model: being sure and wrong costs most.",
        phrase="{value} nats",
        row_statistics=reading_scores.log_loss,
        signature=signed("log:e"),
    )


def _calibration(key: str, kind: AnswerKind) -> EvaluationMetric:
    return EvaluationMetric(
        key=key,
        kind=kind,
        title="Calibration error",
        unit="share",
        better="lower",
        note="How far the model's confidence is from its share of right answers: if answers given "
        "with 90 % are right in 60 % of cases, it is 30 points off.",
        phrase="{value} calibration error",
        row_statistics=reading_scores.confidence,
        aggregate=reading_scores.calibration_error,
        signature=signed(f"bins:{reading_scores.BINS}|width:equal"),
    )


READING_METRICS = (
    EvaluationMetric(
        key="right_label",
        kind="label",
        title="Right labels",
        unit="share",
        note="Texts with exactly the right label, or the right set of labels.",
        phrase="{value} right labels",
        is_binary=True,
        row_statistics=reading_scores.same_lines,
        signature=signed("labels:all"),
    ),
    EvaluationMetric(
        key="macro_f1",
        kind="label",
        title="Macro F1",
        unit="share",
        note="The mean F1 score of the labels: rare labels count as much as common ones.",
        phrase="{value} macro F1",
        row_statistics=lambda _row: None,
        prepare=reading_scores.count_each_line,
        aggregate=reading_scores.macro_f1,
        signature=signed("mean:labels"),
    ),
    EvaluationMetric(
        key="micro_f1",
        kind="label",
        title="Micro F1",
        unit="share",
        note="The F1 score of all labels together, for texts that may have several.",
        phrase="{value} micro F1",
        row_statistics=reading_scores.found_lines,
        aggregate=reading_scores.f1,
        signature=signed("over:labels"),
    ),
    EvaluationMetric(
        key="entity_f1",
        kind="entities",
        title="F1 of entities",
        unit="share",
        note="An entity counts as found only if its first word, its last word and its label are "
        "all right, as in CoNLL-2003.",
        phrase="{value} F1 of entities",
        row_statistics=reading_scores.found_lines,
        aggregate=reading_scores.f1,
        signature=signed("span:exact|label:yes"),
    ),
    EvaluationMetric(
        key="entity_precision",
        kind="entities",
        title="Precision of entities",
        unit="share",
        note="The share of the entities that were found that are right.",
        phrase="{value} precision of entities",
        row_statistics=reading_scores.found_lines,
        aggregate=reading_scores.precision,
        signature=signed("span:exact|label:yes"),
    ),
    EvaluationMetric(
        key="entity_recall",
        kind="entities",
        title="Recall of entities",
        unit="share",
        note="The share of the entities in the data that were found.",
        phrase="{value} recall of entities",
        row_statistics=reading_scores.found_lines,
        aggregate=reading_scores.recall,
        signature=signed("span:exact|label:yes"),
    ),
    EvaluationMetric(
        key="preferred",
        kind="score",
        title="Right preferences",
        unit="share",
        note="Pairs of answers of which the better one has the higher score; equal scores count "
        "as wrong.",
        phrase="{value} right preferences",
        is_binary=True,
        row_statistics=reading_scores.same_lines,
        signature=signed("ties:wrong"),
    ),
    _log_loss("label_loss", "label"),
    _log_loss("preference_loss", "score"),
    _calibration("label_calibration_error", "label"),
    _calibration("preference_calibration_error", "score"),
    EvaluationMetric(
        key="wrong_step_f1",
        kind="steps",
        title="F1 of wrong steps",
        unit="share",
        note="High only if the model finds most wrong steps, and calls few right ones wrong.",
        phrase="{value} F1 of wrong steps",
        row_statistics=reading_scores.wrong_steps,
        aggregate=reading_scores.wrong_step_f1,
        signature=signed(_STEPS),
    ),
    EvaluationMetric(
        key="first_error",
        kind="steps",
        title="First error found",
        unit="share",
        note="Solutions whose first wrong step was found, or that have none and got none.",
        phrase="{value} first errors found",
        is_binary=True,
        row_statistics=reading_scores.first_error,
        signature=signed(_STEPS),
    ),
    EvaluationMetric(
        key="right_steps",
        kind="steps",
        title="Right verdicts",
        unit="share",
        note="Steps that the model calls right or wrong as the data does. If most steps are "
        "right, a model that finds no error has a high share, too.",
        phrase="{value} right verdicts",
        row_statistics=reading_scores.same_steps,
        signature=signed(_STEPS),
    ),
    EvaluationMetric(
        key="r2",
        kind="number",
        title="R²",
        unit="ratio",
        note="The share of the scatter of the numbers that the model explains: 1 is perfect, 0 no "
        "better than always the mean.",
        phrase="{value} R²",
        row_statistics=lambda _row: None,
        prepare=reading_scores.squared_errors,
        aggregate=reading_scores.r2,
        signature=signed("mean:numbers"),
    ),
    EvaluationMetric(
        key="scaled_error",
        kind="number",
        title="Scaled error",
        unit="ratio",
        better="lower",
        note="The root of the mean squared error of several numbers, each in its own standard "
        "deviations: 1 is no better than always the mean.",
        phrase="{value} scaled error",
        row_statistics=lambda _row: None,
        prepare=reading_scores.scaled_errors,
        aggregate=reading_scores.root_mean,
        signature=signed("units:deviations|mean:numbers"),
    ),
    EvaluationMetric(
        key="rmse",
        kind="number",
        title="RMSE",
        unit="number",
        better="lower",
        note="The root of the mean squared error, in the units of the data: large errors count "
        "most.",
        phrase="{value} RMSE",
        row_statistics=reading_scores.squared_error,
        aggregate=reading_scores.root_mean,
        signature=signed("units:data"),
    ),
    EvaluationMetric(
        key="mae",
        kind="number",
        title="MAE",
        unit="number",
        better="lower",
        note="The mean error, in the units of the data.",
        phrase="{value} MAE",
        row_statistics=reading_scores.absolute_error,
        signature=signed("units:data"),
    ),
)
