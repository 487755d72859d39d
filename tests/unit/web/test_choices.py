"""What forms offer, on machines other than this one."""

from sqlmodel import Session

from studio.hardware import Gpu, Hardware
from studio.methods import METHODS
from studio.web.forms import choices

T4 = Hardware(
    processor="Xeon",
    cores=8,
    memory_bytes=10**10,
    native_bf16=False,
    gpus=(Gpu(index=0, name="Tesla T4", memory_bytes=16 * 10**9, capability=(7, 5)),),
    torch="2.13.0",
)


def test_unavailable_precision_has_reason() -> None:
    refused = {
        one.mode.name: one.unavailable_reason
        for one in choices.precision_options(T4)
        if one.unavailable_reason
    }

    assert refused["bf16"] == (
        "needs compute capability 8.0 or newer; Tesla T4 has 7.5, which only emulates it"
    )
    assert [
        one.mode.name for one in choices.precision_options(T4) if not one.unavailable_reason
    ] == [
        "fp16",
        "fp32",
        "fp32_bf16_matmul",
    ]


def test_datasets_are_listed_with_row_count(db: Session) -> None:
    assert choices.dataset_options(db, "starter", METHODS["sft"]) == [
        ("starter", "starter (40 rows)")
    ]


def test_missing_dataset_is_still_listed(db: Session) -> None:
    assert choices.dataset_options(db, "old", METHODS["sft"]) == [
        ("old", "old (missing)"),
        ("starter", "starter (40 rows)"),
    ]
