"""A program that prints what nvidia-smi prints on a machine with other GPUs."""

from pathlib import Path

A100 = "0, NVIDIA A100-SXM4-40GB, 40960, 8.0, GPU-aaaa1111-0000, Disabled"
T4 = "1, Tesla T4, 15360, 7.5, GPU-bbbb2222-0000, [N/A]"
SECOND_T4 = "2, Tesla T4, 15360, 7.5, GPU-cccc3333-0000, [N/A]"
SPLIT_A100 = A100.replace("Disabled", "Enabled")
INSTANCES = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa1111-0000)
  MIG 3g.20gb     Device  0: (UUID: MIG-3333-0000)
  MIG 1g.5gb      Device  1: (UUID: MIG-1111-0000)
GPU 1: Tesla T4 (UUID: GPU-bbbb2222-0000)
"""


def install(folder: Path, *gpus: str, instances: str = "") -> str:
    """Write the program into a folder, and return a PATH that has it first."""
    folder.mkdir(exist_ok=True)
    (folder / "gpus").write_text("".join(f"{gpu}\n" for gpu in gpus), "utf-8")
    (folder / "instances").write_text(instances, "utf-8")
    program = folder / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -L ] && exec cat "{folder}/instances"\nexec cat "{folder}/gpus"\n',
        "utf-8",
    )
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"
