"""Axolotl: the YAML files of `axolotl train`."""

from collections.abc import Mapping

from studio.services.recipe_imports import advice, conversions
from studio.services.recipe_imports.table import (
    NAME,
    Convert,
    NoCounterpartError,
    SourceFile,
    Tool,
    Use,
    always,
    combined,
    is_off,
    same,
)
from studio.services.recipe_imports.tools import axolotl_absent, precision, trainer_arguments

_PAIR_METHODS: Mapping[str, Mapping[str, object]] = {
    "dpo": {},
    "ipo": {"preference.loss_type": "ipo"},
    "simpo": {"preference.loss_type": "simpo"},
    "orpo": {"preference.loss_type": "orpo", "preference.sft_weight": 1.0},
}
_METHODS = dict.fromkeys(_PAIR_METHODS, "dpo") | {"kto": "kto", "grpo": "grpo"}
_NO_ADAPTER = "full"
"""Stands for the adapter of a file that names none."""
_TEXT_TYPES = ("completion", "pretrain")
_AUTO = (
    "There, auto is bfloat16 if the GPU has it, and float16 otherwise. Here, the studio recommends "
    "a precision for the model and the machine."
)
_AUTO_THROUGHOUT = (
    "In a full fine-tune, that loads the weights themselves in bfloat16: bfloat16 throughout is "
    "the same here."
)


def find_method(file: SourceFile) -> str:
    if file.has("rl"):
        return _METHODS.get(str(file.get("rl")), "sft")
    if file.has("process_reward_model"):
        return "prm"
    if file.has("reward_model"):
        return "reward"
    if file.has("processor_type"):
        return "vision"
    types = _dataset_types(file.get("datasets"))
    is_text = bool(types) and all(str(kind) in _TEXT_TYPES for kind in types)
    return "cpt" if file.has("pretraining_dataset") or is_text else "sft"


def _dataset_types(datasets: object) -> list[object]:
    entries = datasets if isinstance(datasets, list) else []
    return [entry.get("type") for entry in entries if isinstance(entry, Mapping)]


def _rl(value: object, _file: SourceFile) -> Use:
    name = str(value)
    if name not in _METHODS:
        raise NoCounterpartError(advice.ALGORITHM)
    return Use({"method": _METHODS[name], **_PAIR_METHODS.get(name, {})})


def _method_switch(value: object, file: SourceFile) -> Use:
    return Use() if is_off(value) else Use({"method": find_method(file)})


def _datasets(value: object, file: SourceFile) -> Use:
    used = conversions.dataset(value, file)
    return Use({**used.settings, "method": find_method(file)}, used.note)


def _adapter(value: object, _file: SourceFile) -> Use:
    if value == _NO_ADAPTER or is_off(value):
        return Use({"adapter.kind": "full"})
    if str(value) not in ("lora", "qlora"):
        raise NoCounterpartError(advice.ADAPTER_DETAILS)
    return Use({"adapter.kind": "lora"})


def _bits(value: object, file: SourceFile) -> Use:
    if is_off(value):
        return Use()
    return Use({"adapter.base_dtype": "nf4" if file.has("load_in_4bit") else "int8"})


def _precision(_value: object, file: SourceFile) -> Use:
    return precision.with_tf32(_switches(file), is_on=file.has("tf32"))


def _switches(file: SourceFile) -> Use:
    """Return what the switches mean together.

    They choose the format that weights are loaded in, too, also those of a full fine-tune.
    """
    is_quantised = file.has("load_in_4bit") or file.has("load_in_8bit")
    if file.has("fp8"):
        if not file.has("adapter"):
            return Use({"precision": "fp8"})
        used = precision.for_adapter("bfloat16", "bfloat16", is_quantised=is_quantised)
        return precision.with_note(used, precision.FLOAT8_PRODUCTS)
    has_float16 = file.has("fp16") or file.has("float16")
    if file.get("bf16") == "auto" and not has_float16 and not file.has("bfloat16"):
        note = _AUTO if file.has("adapter") else f"{_AUTO} {_AUTO_THROUGHOUT}"
        return Use({"precision": "auto"}, note)
    bfloat16 = file.get("bf16") is True or file.has("bfloat16")
    compute = "bfloat16" if bfloat16 else "float16" if has_float16 else "float32"
    if file.has("adapter"):
        return precision.for_adapter(compute, compute, is_quantised=is_quantised)
    return precision.for_full(compute, compute)


def _flag(setting: str, chosen: object) -> Convert:
    """Return a conversion of a switch that chooses one value of a setting."""
    return lambda value, _file: Use() if is_off(value) else Use({setting: chosen})


def _all_layers(value: object, file: SourceFile) -> Use:
    if is_off(value) or file.has("lora_target_modules"):
        return Use()
    return Use({"adapter.target_modules": "all-linear"})


def _checkpointing(value: object, _file: SourceFile) -> Use:
    settings = {"optimisation.activation_checkpointing": not is_off(value)}
    if str(value) == "offload_disk":
        return Use(settings, "Activations are not moved to the disk here.")
    if str(value) in ("offload", "unsloth"):
        settings["optimisation.activation_offloading"] = True
    return Use(settings)


def _times_per_epoch(value: object, file: SourceFile) -> Use:
    times = conversions.number(value) * conversions.number(file.get("num_epochs"))
    if times <= 1:
        return Use({"evaluation.eval_steps": 0.5}, "Here, a run is validated halfway, too.")
    return Use({"evaluation.eval_steps": 1 / times})


_BATCH = conversions.prompts_at_a_time(
    "micro_batch_size", "gradient_accumulation_steps", "trl.num_generations"
)


def _batch(value: object, file: SourceFile) -> Use:
    """Return examples per device; of GRPO, a batch counts answers there."""
    if file.method == "grpo":
        return _BATCH(value, file)  # type: ignore[no-any-return] # a `Use`
    return Use({"optimisation.per_device_train_batch_size": value})


def _accumulation(value: object, file: SourceFile) -> Use:
    if file.method == "grpo":
        return _BATCH(value, file)  # type: ignore[no-any-return] # a `Use`
    return Use({"optimisation.gradient_accumulation_steps": value})


def _total_batch(value: object, file: SourceFile) -> Use:
    size = conversions.number(file.get("micro_batch_size")) or 1.0
    steps = max(1, int(conversions.number(value) // size))
    note = "It is the batch size times the accumulated batches."
    return Use({"optimisation.gradient_accumulation_steps": steps}, note)


def _supervised_weight(value: object, _file: SourceFile) -> Use:
    note = "The supervised loss is averaged for each answer here, not over all tokens of a batch."
    return Use({"preference.sft_weight": conversions.number(value)}, note)


_MODEL = (
    same("base_model", convert=conversions.base_model),
    same("adapter", convert=_adapter, default=_NO_ADAPTER),
    same("load_in_4bit", convert=_bits),
    same("load_in_8bit", convert=_bits),
    same("lora_r", "adapter.r"),
    same("lora_alpha", "adapter.lora_alpha"),
    same("lora_dropout", "adapter.lora_dropout", default=0.0),
    same("lora_target_modules", convert=conversions.targets),
    same("lora_target_linear", convert=_all_layers),
    same("lora_modules_to_save", convert=conversions.modules_in_full),
    same("peft_use_rslora", "adapter.use_rslora"),
    same("peft_use_dora", convert=_flag("adapter.variant", "dora")),
    same(
        "peft_init_lora_weights",
        "adapter.variant",
        convert=conversions.choice(
            {"pissa": "pissa", "olora": "olora", "eva": "eva", "loftq": "loftq", "true": "plain"},
            advice.ADAPTER_DETAILS,
        ),
    ),
    same("loraplus_lr_ratio", "adapter.lr_ratio"),
    same("tokens", "model.new_tokens", convert=conversions.new_tokens),
    same("flash_attention", convert=_flag("model.attention", "flash_attention_2")),
    same("sdp_attention", convert=_flag("model.attention", "sdpa")),
    same("eager_attention", convert=_flag("model.attention", "eager")),
    same("attn_implementation", "model.attention", convert=conversions.attention),
    always("peft_autocast_adapter_dtype", (True,), advice.ADAPTER_DETAILS),
)
_DATA = (
    same("datasets", convert=_datasets),
    same("pretraining_dataset", convert=_datasets),
    same("sequence_len", "data.max_length", default=512),
    same("sample_packing", "data.packing", convert=lambda value, _file: not is_off(value)),
    same("val_set_size", convert=conversions.validation_share, default=0.0),
    same("chat_template", convert=conversions.chat_template),
    always("shuffle_merged_datasets", (True,), advice.MIXTURE),
)
_LEARNING = (
    same("wandb_name", NAME),
    same("rl", convert=_rl),
    same("reward_model", convert=_method_switch),
    same("process_reward_model", convert=_method_switch),
    same("micro_batch_size", convert=_batch, default=1),
    same("gradient_accumulation_steps", convert=_accumulation, default=1),
    same("batch_size", convert=_total_batch),
    same("eval_batch_size", "evaluation.per_device_eval_batch_size"),
    same("num_epochs", "optimisation.num_train_epochs", default=1.0),
    same("learning_rate", "optimisation.learning_rate"),
    same("embedding_lr", "optimisation.embedding_learning_rate"),
    same(
        "lr_scheduler",
        "optimisation.lr_scheduler_type",
        convert=conversions.schedule,
        default="cosine",
    ),
    same("optimizer", "optimisation.optim", convert=conversions.optimiser),
    same("gradient_checkpointing", convert=_checkpointing),
    same("activation_offloading", "optimisation.activation_offloading"),
    combined("bf16", _precision, default="auto"),
    combined("fp16", _precision),
    combined("bfloat16", _precision),
    combined("float16", _precision),
    combined("float32", _precision),
    combined("fp8", _precision),
    combined("tf32", precision.if_on(_precision)),
    same("rl_beta", "preference.beta", "rating.beta", default=0.1),
    same("dpo_beta", "preference.beta", "rating.beta"),
    same("orpo_alpha", "preference.beta"),
    same("rpo_alpha", convert=_supervised_weight),
    same("cpo_alpha", convert=_supervised_weight),
    same("simpo_gamma", convert=conversions.simpo_margin("rl", "rl_beta"), default=0.5),
    same("dpo_use_weighting", "preference.confidence_weighted"),
    same("dpo_label_smoothing", "preference.label_smoothing"),
    same("kto_desirable_weight", "rating.good_weight", default=1.0),
    same("kto_undesirable_weight", "rating.bad_weight", default=1.0),
    same("trl.beta", "policy.beta", "preference.beta", "rating.beta"),
    same("trl.num_generations", "rollouts.answers_per_prompt", default=8),
    same("trl.max_completion_length", "rollouts.max_new_tokens"),
    same("trl.temperature", "rollouts.temperature"),
    same("trl.epsilon", "policy.epsilon"),
    same("trl.epsilon_high", "policy.epsilon_high"),
    same("trl.loss_type", "policy.loss_type"),
    same("trl.importance_sampling_level", "policy.importance_level"),
    same("trl.mask_truncated_completions", "policy.mask_truncated"),
    same(
        "trl.scale_rewards",
        "policy.scale_rewards",
        convert=lambda value, _file: "none" if is_off(value) else "group",
    ),
    always("trl.num_iterations", (1,), advice.ALGORITHM),
    same("evals_per_epoch", convert=_times_per_epoch),
    same("eval_strategy", convert=conversions.validation_strategy("num_epochs")),
    same("evaluation_strategy", convert=conversions.validation_strategy("num_epochs")),
    same("early_stopping_patience", "early_stopping.early_stopping_patience"),
)
_OTHERS = (same("wandb_name", NAME),)
_HERE = {row.key for row in (*_MODEL, *_DATA, *_LEARNING, *axolotl_absent.ROWS)}

AXOLOTL = Tool(
    name="axolotl",
    title="Axolotl",
    marks=frozenset(
        {
            "base_model",
            "datasets",
            "sequence_len",
            "micro_batch_size",
            "num_epochs",
            "adapter",
            "sample_packing",
            "val_set_size",
            "lora_target_linear",
            "rl",
            "evals_per_epoch",
        }
    ),
    rows=(
        *_MODEL,
        *_DATA,
        *_LEARNING,
        *axolotl_absent.ROWS,
        # The names of arguments that it hands on to transformers.
        *(
            row
            for row in (
                *trainer_arguments.OPTIMISATION,
                *trainer_arguments.EVALUATION,
                *trainer_arguments.OTHERS,
            )
            if row.key not in _HERE
            and row.key not in ("num_train_epochs", "lr_scheduler_type", "optim", "warmup_steps")
        ),
        same("warmup_steps", "optimisation.warmup_steps", default=0.03),
    ),
    find_method=find_method,
)
