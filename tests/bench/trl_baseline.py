"""The shortest TRL script with our settings.

Started as `... tests.bench.trl_baseline MODEL ROWS STEPS MODE BATCH`.

Prints one JSON line a step: when it was logged, and how many real tokens it brought.
"""

import json
import sys
import time
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Clock(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    def on_log(self, *_given: object, logs: dict[str, Any], **_rest: object) -> None:
        if "loss" in logs:
            line = {"at": time.time(), "tokens": logs["num_tokens"], "loss": logs["loss"]}
            print(json.dumps(line), flush=True)  # noqa: T201 -- read by the bench


def main(model: str, rows: str, steps: str, mode: str, batch: str = "32") -> None:
    args = SFTConfig(
        output_dir=f"{rows}.out",
        max_steps=int(steps),
        per_device_train_batch_size=int(batch),
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.03,
        train_sampling_strategy="group_by_length",
        assistant_only_loss=True,
        max_length=256,
        activation_checkpointing=False,
        bf16=mode == "bf16",
        fp16=mode == "fp16",
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=42,
    )
    SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=args,
        train_dataset=load_dataset("json", data_files=rows, cache_dir=f"{rows}.cache")["train"],
        callbacks=[Clock()],
    ).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
