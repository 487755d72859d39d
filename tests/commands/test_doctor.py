"""`studio doctor`: what is there and what is missing, in words."""

from studio.commands import doctor
from studio.hardware import Gpu, Hardware
from studio.settings import Settings

BARE = Hardware(processor="P", cores=2, memory_bytes=10**10, native_bf16=False)


def told(settings: Settings, hardware: Hardware) -> dict[str, bool | None]:
    return {finding.text: finding.good for finding in doctor.collect_findings(settings, hardware)}


def test_missing_training_packages_are_reported(settings: Settings) -> None:
    said = told(settings, BARE)

    assert said["The training packages are missing: pip install 'mantissa-studio[train]'"] is False


def test_gpu_unusable_by_torch_is_reported(settings: Settings) -> None:
    gpu = Gpu(index=0, name="Card", memory_bytes=2**34, capability=(8, 0))
    hardware = Hardware(
        processor="P",
        cores=2,
        memory_bytes=10**10,
        native_bf16=True,
        gpus=(gpu,),
        torch="2.13.0+cpu",
    )

    assert (
        told(settings, hardware)["This machine has a GPU, but torch was built without CUDA."]
        is False
    )


def test_slow_precision_mode_shows_warning(settings: Settings) -> None:
    said = told(settings, BARE)

    assert (
        said["bfloat16 mixed: slow on this CPU, which emulates bfloat16 (results are accurate)"]
        is True
    )


def test_precision_mode_for_other_hardware_is_not_reported_as_error(settings: Settings) -> None:
    refused = [good for text, good in told(settings, BARE).items() if "TF32" in text]

    assert refused == [None]


def test_disabled_launcher_is_not_reported_as_error(settings: Settings) -> None:
    told_of_it = {
        text: good for text, good in told(settings, BARE).items() if text.startswith("Quick")
    }

    assert told_of_it == {"Quick start: off": None}
