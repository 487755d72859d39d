"""The shortest TRL script of each method, with our settings.

Started as `... tests.bench.trl_baseline METHOD MODEL ROWS STEPS MODE BATCH`.

Prints one JSON line a step: when it was logged, and how many real tokens it brought.
"""

import json
import sys
import time
from typing import Any

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, TrainerCallback
from trl import (
    DPOConfig,
    DPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

LORA = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
SFT = {"assistant_only_loss": True, "train_sampling_strategy": "group_by_length"}
METHODS: dict[str, tuple[Any, Any, dict[str, Any], LoraConfig | None]] = {
    "sft": (SFTTrainer, SFTConfig, SFT, None),
    # Upstream cannot sort answers that are compared by their length.
    "dpo": (DPOTrainer, DPOConfig, {}, LORA),
    "kto": (KTOTrainer, KTOConfig, {}, LORA),
    "reward": (
        RewardTrainer,
        RewardConfig,
        {},
        LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="SEQ_CLS"),
    ),
}
"""The trainer of each method, its config, what that needs, and the adapter."""


class Clock(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    def on_log(self, *_given: object, logs: dict[str, Any], **_rest: object) -> None:
        if "loss" in logs:
            line = {"at": time.time(), "tokens": logs["num_tokens"], "loss": logs["loss"]}
            print(json.dumps(line), flush=True)  # noqa: T201 -- read by the bench


def main(method: str, model: str, rows: str, steps: str, mode: str, batch: str) -> None:
    trainer, config, own, adapter = METHODS[method]
    args = config(
        output_dir=f"{rows}.out",
        max_steps=int(steps),
        per_device_train_batch_size=int(batch),
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.03,
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
        **own,
    )
    trainer(
        model=_load(method, model),
        args=args,
        train_dataset=load_dataset("json", data_files=rows, cache_dir=f"{rows}.cache")["train"],
        callbacks=[Clock()],
        peft_config=adapter,
    ).train()


def _load(method: str, model: str) -> Any:  # noqa: ANN401 -- upstream is untyped
    if method == "reward":
        return AutoModelForSequenceClassification.from_pretrained(
            model, dtype=torch.float32, num_labels=1
        )
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


if __name__ == "__main__":
    main(*sys.argv[1:])
