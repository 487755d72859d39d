"""Each tool in an environment of its own, and how fast it trains."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import torch

from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import MetricsLogged
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe import yaml
from tests.bench.peers import workload as shared
from tests.bench.peers.workload import Cell, Workload
from tests.bench.record import ROOT
from tests.support.waiting import wait_until

ENVIRONMENTS = ROOT / ".cache" / "peers"
REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    "llama_factory": ("llamafactory==0.9.5", "torch==2.13.0"),
    "bare_trl": ("trl==1.16.0", "transformers==5.23.0", "peft==0.21.2", "torch==2.13.0"),
}
"""What is installed for each peer, beside what it asks for itself. TRL's versions are ours."""

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "DISABLE_VERSION_CHECK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
}
"""One thread each: two on a busy machine wait for each other."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How one run went."""

    tokens_per_cpu_second: float
    cpu_seconds_to_first_step: float
    loss: float
    """Mean of the steps that count."""


def install() -> None:
    """Make the environments of the peers, which stay in `.cache/peers`."""
    for name, packages in REQUIREMENTS.items():
        python = _python(name)
        stamp = python.parent.parent / "installed"
        if stamp.exists() and stamp.read_text() == " ".join(packages):
            continue
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        if not torch.cuda.is_available():
            _remove_gpu_builds(python)
        stamp.write_text(" ".join(packages))


def _remove_gpu_builds(python: Path) -> None:
    """Remove packages that have no build for processors alone and cannot be imported without one.

    LLaMA-Factory imports torchaudio whatever it trains; text needs nothing of it.
    """
    removed = ("torchvision", "torchaudio")
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *removed], check=True)
    packages = next((python.parent.parent / "lib").glob("python*/site-packages"))
    (packages / "torchaudio.py").touch()


def _python(name: str) -> Path:
    return ENVIRONMENTS / name / "bin" / "python"


def train_ours(workload: Workload, cell: Cell, number: int) -> Pace:
    run = _write_run(workload, cell, number)
    command = [sys.executable, "-m", "studio.runner", str(run.root)]

    def losses() -> list[float]:
        events = run.events.read()[0] if run.events.path.exists() else []
        logged = [e.metrics for e in events if isinstance(e, MetricsLogged)]
        return [metrics["loss"] for metrics in logged if "loss" in metrics]

    return _watch(command, run.root / "said.log", losses, workload)


def train_peer(name: str, workload: Workload, cell: Cell, number: int) -> Pace:
    """Run a peer's script in its environment. The script prints a JSON line for each step."""
    folder = workload.folder / f"{name}-{cell.adapter}-{cell.mode}-{number}"
    folder.mkdir()
    said = folder / "said.log"
    settings = {
        "model": str(workload.model),
        "rows": str(workload.rows),
        "out": str(folder),
        "adapter": cell.adapter,
        "mode": cell.mode,
        "batch": shared.BATCH,
        "accumulation": shared.ACCUMULATION,
        "epochs": shared.EPOCHS,
        "learning_rate": shared.LEARNING_RATE,
        "rank": shared.RANK,
        "max_length": shared.MAX_LENGTH,
        "seed": shared.SEED,
    }
    script = Path(__file__).with_name(f"{name}_script.py")
    command = [str(_python(name)), str(script), json.dumps(settings)]

    def losses() -> list[float]:
        lines = said.read_text("utf-8", errors="replace").splitlines() if said.exists() else []
        return [json.loads(line)["loss"] for line in lines if line.startswith('{"loss"')]

    return _watch(command, said, losses, workload)


Train = Callable[[Workload, Cell, int], Pace]
TOOLS: Mapping[str, Train] = {
    "ours": train_ours,
    "LLaMA-Factory": partial(train_peer, "llama_factory"),
    "bare TRL": partial(train_peer, "bare_trl"),
}


def _watch(
    command: list[str], said: Path, losses: Callable[[], list[float]], workload: Workload
) -> Pace:
    """Train, and read the processor's time of the process after the steps that matter."""
    total = shared.STEPS_PER_EPOCH * shared.EPOCHS
    spent: dict[int, float] = {}
    with said.open("wb") as log:
        child = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
        )
        try:
            for step in (1, shared.STEPS_PER_EPOCH, total):
                wait_until(partial(_has_logged, child, losses, step), seconds=1800)
                assert len(losses()) >= step, said.read_text("utf-8", errors="replace")[-3000:]
                spent[step] = _cpu_seconds(child)
        finally:
            child.kill()
            child.wait()
    measured = losses()[shared.STEPS_PER_EPOCH : total]
    return Pace(
        workload.tokens / (spent[total] - spent[shared.STEPS_PER_EPOCH]),
        spent[1],
        statistics.fmean(measured),
    )


def _has_logged(
    child: "subprocess.Popen[bytes]", losses: Callable[[], list[float]], step: int
) -> bool:
    return len(losses()) >= step or child.poll() is not None


def _cpu_seconds(child: "subprocess.Popen[bytes]") -> float:
    times = psutil.Process(child.pid).cpu_times()
    return times.user + times.system


def _write_run(workload: Workload, cell: Cell, number: int) -> RunDir:
    run = RunDir(workload.folder / f"ours-{cell.adapter}-{cell.mode}-{number}")
    run.root.mkdir()
    steps = shared.STEPS_PER_EPOCH * shared.EPOCHS
    values = {
        "method": "sft",
        "base_model": "peers",
        "dataset": "peers",
        "precision": cell.mode,
        "optimisation": {
            "learning_rate": shared.LEARNING_RATE,
            "max_steps": steps + 1,
            "num_train_epochs": shared.EPOCHS + 1.0,
            "per_device_train_batch_size": shared.BATCH,
            "gradient_accumulation_steps": shared.ACCUMULATION,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0.0,
            "weight_decay": 0.0,
            "seed": shared.SEED,
        },
        "adapter": {"kind": cell.adapter}
        | ({"r": shared.RANK, "lora_alpha": 2 * shared.RANK} if cell.adapter == "lora" else {}),
        "data": {"max_length": shared.MAX_LENGTH},
        "evaluation": {"logging_steps": 1, "eval_steps": 1000.0},
        "samples": {"prompts": 0},
    }
    run.recipe.write_text(yaml.dump(RECIPE_ADAPTER.validate_python(values)), encoding="utf-8")
    spec = JobSpec(
        run_id=1,
        name="Peers",
        model=str(workload.model),
        train=workload.rows,
        validation=workload.folder / "validation.jsonl",
    )
    run.job.write_text(spec.model_dump_json(), encoding="utf-8")
    return run
