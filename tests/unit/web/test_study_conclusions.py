"""What a study comes to, in words that claim no more than the numbers."""

import csv
import math

from studio.db.tables import Study
from studio.services.studies import study_statistics
from studio.services.studies.study_reports import AnswerComparison, StudyReport, Timeline
from studio.services.studies.study_statistics import State, StudyRun
from studio.web.studies import study_page
from studio.web.study_conclusions import draw_conclusions, format_share


def trial(mode: str, seed: int, *losses: float, state: State = "done") -> StudyRun:
    """Make a run validated at each step; the reference is slower and larger than the others."""
    return StudyRun(
        precision=mode,
        seed=seed,
        state=state,
        final=losses[-1] if state == "done" and losses else None,
        validations=dict(enumerate(losses, 1)),
        tokens_per_second=100.0 if mode == "fp32" else 130.0,
        peak_memory_bytes=100.0 if mode == "fp32" else 99.0,
    )


def report(*trials: StudyRun, devices: tuple[str, ...] = ()) -> StudyReport:
    return StudyReport(
        study=Study(experiment_id=1, name="a|b", modes=["fp32"], seeds=[0]),
        runs=[],
        findings=study_statistics.compare_precisions(trials),
        curves={},
        answers=AnswerComparison(
            seed=0, prompts=4, differing=[], by_mode={"bf16": 1}, right={}, between_seeds=None
        ),
        timeline=Timeline(steps=0, incidents=[]),
        devices=list(devices),
    )


def said(*trials: StudyRun) -> list[str]:
    return [sentence.replace("\xa0", " ") for sentence in draw_conclusions(report(*trials))]


REFERENCE = (trial("fp32", 0, 3.0, 2.0), trial("fp32", 1, 3.0, 2.1))


def test_equal_loss_is_reported_with_gap_noise_and_seeds() -> None:
    (told,) = said(*REFERENCE, trial("bf16", 0, 3.0, 2.01), trial("bf16", 1, 3.0, 2.11))

    assert told == (
        "bf16 equals fp32 within seed noise (gap +0.01, seed noise ±0.071, 2 seeds), "
        "at 1.30 ± 0 times its speed and 1 % less memory."
    )


def test_lost_improvement_is_reported_as_percentage() -> None:
    told = said(*REFERENCE, trial("bf16", 0, 3.0, 2.9), trial("bf16", 1, 3.0, 3.0))

    assert told[0].startswith(
        "bf16 lost 95 % of fp32's improvement (gap +0.9, seed noise ±0.071, 2 seeds)"
    )


def test_lower_loss_than_reference_is_reported() -> None:
    told = said(*REFERENCE, trial("bf16", 0, 3.0, 1.5), trial("bf16", 1, 3.0, 1.6))

    assert told[0].startswith("bf16 is 0.5 below fp32 (seed noise ±0.071, 2 seeds)")


def test_single_seed_is_reported_as_too_few() -> None:
    equal, unknown = said(trial("fp32", 0, 3.0, 2.0), trial("bf16", 0, 3.0, 2.0))

    assert equal.startswith("bf16 has the same loss as fp32 (gap 0, 1 seed, too few to judge), at ")
    assert unknown == (
        "Seed noise is unknown: fp32 has 1 seed with a validation loss; at least 2 are needed."
    )


def test_precision_without_finished_run_is_not_judged() -> None:
    lost = (trial("bf16", 0, 3.0, state="failed"), trial("bf16", 1, state="cancelled"))

    assert said(*REFERENCE, *lost) == [
        "bf16 has no results to compare with fp32; 1 of 2 runs failed; 1 of 2 runs cancelled."
    ]


def test_failed_reference_is_reported() -> None:
    told = said(trial("fp32", 0, state="failed"), trial("bf16", 0, 3.0, 2.0))

    assert told[1] == "fp32: 1 of 1 run failed."


def test_non_finite_loss_is_reported() -> None:
    told = said(*REFERENCE, trial("bf16", 0, 3.0, math.nan))

    assert told == ["bf16 has no finite validation loss (1 of 1 run)."]


def test_speeds_on_different_devices_are_not_compared() -> None:
    told = draw_conclusions(report(*REFERENCE, devices=("A100", "T4")))

    assert told == ["Speeds are not comparable: the runs used 2 kinds of device: A100, T4."]


def test_share_is_formatted_without_negative_zero() -> None:
    assert [format_share(value) for value in (0.5, 0.004, -0.0001, -0.5)] == [
        "50\xa0%",
        "0.4\xa0%",
        "0\xa0%",
        "\N{MINUS SIGN}50\xa0%",
    ]


def test_markdown_has_one_row_per_precision_and_escapes_names() -> None:
    text = study_page.to_markdown(report(*REFERENCE, trial("bf16_pure", 0, 3.0, 2.0)))

    lines = text.splitlines()
    assert lines[0] == "# Precision study: a\\|b"
    assert [line.split(" | ")[:2] for line in lines if "done" in line] == [
        ["| fp32", "2 done"],
        ["| bf16\\_pure", "1 done"],
    ]


def test_csv_contains_plain_numbers() -> None:
    text = study_page.to_csv(report(*REFERENCE, trial("bf16", 0, 3.0, 2.25)))
    rows = {row["precision"]: row for row in csv.DictReader(text.splitlines())}

    assert (rows["bf16"]["gap"], rows["bf16"]["eval_loss_n"], rows["fp32"]["gap"]) == (
        "0.25",
        "1",
        "",
    )
