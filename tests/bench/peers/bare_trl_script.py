"""Train by the shortest TRL script, in its own environment; print a JSON line for each step.

Started as `python bare_trl_script.py SETTINGS`, with a JSON object.
"""

import json
import sys
from typing import Any

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Steps(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    def on_log(self, *_given: object, logs: dict[str, Any], **_rest: object) -> None:
        if "loss" in logs:
            sys.stdout.write(json.dumps({"loss": logs["loss"]}) + "\n")
            sys.stdout.flush()


def main(settings: dict[str, Any]) -> None:
    rank = settings["rank"]
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    args = SFTConfig(
        output_dir=settings["out"],
        num_train_epochs=settings["epochs"] + 1.0,
        per_device_train_batch_size=settings["batch"],
        gradient_accumulation_steps=settings["accumulation"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_length=settings["max_length"],
        assistant_only_loss=True,
        gradient_checkpointing=False,
        bf16=settings["mode"] == "bf16",
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=settings["seed"],
    )
    SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32),
        args=args,
        train_dataset=load_dataset(
            "json", data_files=settings["rows"], cache_dir=f"{settings['out']}/cache"
        )["train"],
        callbacks=[Steps()],
        peft_config=lora if settings["adapter"] == "lora" else None,
    ).train()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
