"""Train by LLaMA-Factory, in its own environment; print a JSON line for each step.

Started as `python llama_factory_script.py SETTINGS`, with a JSON object. It checkpoints no
activations, which is faster than its default.
"""

import json
import sys
from pathlib import Path
from typing import Any

# mypy: disable-error-code="import-not-found, misc"
# It is installed in an environment of its own.
from llamafactory.data.formatter import EmptyFormatter, StringFormatter
from llamafactory.data.template import register_template
from llamafactory.train.tuner import run_exp
from transformers import TrainerCallback

# What the model's own chat template writes.
register_template(
    name="starter",
    format_user=StringFormatter(
        slots=["<|user|>{{content}}", {"eos_token"}, "<|assistant|>"],
    ),
    format_assistant=StringFormatter(slots=["{{content}}", {"eos_token"}]),
    format_prefix=EmptyFormatter(slots=[{"bos_token"}]),
)

TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
}


class Steps(TrainerCallback):
    def on_log(self, *_given: object, logs: dict[str, Any], **_rest: object) -> None:
        if "loss" in logs:
            sys.stdout.write(json.dumps({"loss": logs["loss"]}) + "\n")
            sys.stdout.flush()


def main(settings: dict[str, Any]) -> None:
    out = Path(settings["out"])
    data = {
        "rows": {
            "file_name": settings["rows"],
            "formatting": "sharegpt",
            "columns": {"messages": "messages"},
            "tags": TAGS,
        }
    }
    (out / "dataset_info.json").write_text(json.dumps(data))
    run_exp(_arguments(settings, out), [Steps()])


def _arguments(settings: dict[str, Any], out: Path) -> dict[str, Any]:
    lora = {"lora_rank": settings["rank"], "lora_alpha": 2 * settings["rank"]}
    return {
        "stage": "sft",
        "do_train": True,
        "model_name_or_path": settings["model"],
        "dataset_dir": str(out),
        "dataset": "rows",
        "template": "starter",
        "cutoff_len": settings["max_length"],
        "overwrite_cache": True,
        "preprocessing_num_workers": 1,
        "output_dir": str(out / "model"),
        "finetuning_type": settings["adapter"],
        **(lora if settings["adapter"] == "lora" else {}),
        "per_device_train_batch_size": settings["batch"],
        "gradient_accumulation_steps": settings["accumulation"],
        "num_train_epochs": settings["epochs"] + 1.0,
        "learning_rate": settings["learning_rate"],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "bf16": settings["mode"] == "bf16",
        "disable_gradient_checkpointing": True,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": settings["seed"],
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
