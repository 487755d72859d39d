"""TRL: the YAML files that `trl sft`, `trl dpo` and its other commands read with `--config`."""

from collections.abc import Iterator, Sequence

from studio.services.recipe_imports import advice, conversions
from studio.services.recipe_imports.table import (
    NoCounterpartError,
    SourceFile,
    Tool,
    Use,
    absent,
    always,
    combined,
    is_off,
    same,
)
from studio.services.recipe_imports.tools import precision, trainer_arguments

_SIGNS = (
    ("distil", ("teacher_model_name_or_path", "teacher_model_init_kwargs")),
    ("rloo", ("normalize_advantages", "reward_clip_range")),
    (
        "grpo",
        (
            "num_generations",
            "reward_funcs",
            "max_completion_length",
            "scale_rewards",
            "num_iterations",
            "mask_truncated_completions",
            "importance_sampling_level",
        ),
    ),
    ("kto", ("desirable_weight", "undesirable_weight")),
    ("reward", ("center_rewards_coefficient",)),
    (
        "dpo",
        (
            "precompute_ref_log_probs",
            "f_divergence_type",
            "ld_alpha",
            "label_smoothing",
            "use_weighting",
            "beta",
        ),
    ),
)
"""The keys that tell the methods apart, most telling first. None of them is one of `trl sft`."""
_LOSSES = {
    "kto": ("kto", "apo_zero_unpaired", "bco"),
    "grpo": ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"),
    "sft": ("nll", "dft", "chunked_nll"),
}
_RATES = {"sft": 2e-5, "cpt": 2e-5, "reward": 1e-4}
_WITH_ANSWERS = ("grpo", "rloo")
_DIVERGENCES = {
    "reverse_kl": "reverse_kl",
    "forward_kl": "forward_kl",
    "js_divergence": "js",
    "alpha_divergence": "alpha",
}
_BATCH = conversions.prompts_at_a_time(
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations"
)
_OWN_TARGETS = (
    "Without names, peft chooses the layers by the model's family, often q_proj and v_proj. Here, "
    "all linear layers get an adapter: name the modules to keep to its choice."
)
_FILE_FORMAT = (
    "There, trained weights keep the format of the model's file, which may be bfloat16. Here, they "
    "are float32."
)


def find_method(file: SourceFile) -> str:
    losses = {str(one) for one in _loss_names(file.get("loss_type"))}
    for method, keys in _SIGNS:
        named = losses & set(_LOSSES.get(method, ()))
        if named or any(key in file.written for key in keys):
            return method
    return "dpo" if losses and not losses & set(_LOSSES["sft"]) else "sft"


def remarks(file: SourceFile) -> Iterator[str]:
    yield (
        "The file does not say which command of TRL it is for: the method was chosen by its keys. "
        "Choose another one if it is wrong."
    )
    if not file.has("max_length") and file.method in _WITH_ANSWERS:
        yield "Prompts that are longer than the max sequence length are left out here."


def _loss_names(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value] if value else []


def _loss(value: object, file: SourceFile) -> Use:
    names = _loss_names(value)
    if len(names) != 1:
        raise NoCounterpartError("A recipe has one loss. Choose it in the form.")
    name = "nll" if names[0] == "chunked_nll" else names[0]
    sections = {"dpo": "preference", "kto": "rating", "grpo": "policy"}
    return Use({f"{sections.get(file.method, 'optimisation')}.loss_type": name})


def _rate(file: SourceFile) -> float:
    return _RATES.get(file.method, 1e-6)


def _precision(_value: object, file: SourceFile) -> Use:
    return precision.with_tf32(_switches(file), is_on=file.has("tf32"))


def _switches(file: SourceFile) -> Use:
    """Return what the format that weights are loaded in and mixed precision mean together."""
    weights = precision.dtype(file.written.get("torch_dtype") or file.get("dtype"))
    is_float16 = file.has("fp16")
    is_bfloat16 = file.get("bf16") is True or (file.get("bf16") is None and not is_float16)
    compute = "bfloat16" if is_bfloat16 else "float16" if is_float16 else weights
    if file.has("use_peft"):
        is_quantised = file.has("load_in_4bit") or file.has("load_in_8bit")
        frozen = weights if weights in ("float32", "bfloat16", "float16") else "native"
        used = precision.for_adapter(compute, frozen, is_quantised=is_quantised)
        return precision.with_note(used, precision.FLOAT32_ADAPTER) if is_quantised else used
    if weights == "auto":
        return Use({"precision": precision.mixed(compute)}, _FILE_FORMAT)
    return precision.for_full(compute, weights)


def _kind(value: object, _file: SourceFile) -> Use:
    return Use({"adapter.kind": "full" if is_off(value) else "lora"})


def _bits(value: object, file: SourceFile) -> Use:
    if is_off(value):
        return Use()
    return Use({"adapter.base_dtype": "nf4" if file.has("load_in_4bit") else "int8"})


def _targets(value: object, file: SourceFile) -> Use:
    if is_off(value):
        return Use(note=_OWN_TARGETS if file.has("use_peft") else "")
    return conversions.targets(value, file)


def _nested_scales(value: object, file: SourceFile) -> Use:
    if value is True or not file.has("load_in_4bit"):
        return Use()
    return Use(note="The scales of 4-bit weights are quantised, too, here (double quantisation).")


def _variant(value: object, _file: SourceFile) -> Use:
    return Use() if is_off(value) else Use({"adapter.variant": "dora"})


def _batch(value: object, file: SourceFile) -> Use:
    """Return examples per device; of methods that write answers, TRL counts these."""
    if file.method in _WITH_ANSWERS:
        return _BATCH(value, file)  # type: ignore[no-any-return] # a `Use`
    return Use({"optimisation.per_device_train_batch_size": value})


def _accumulation(value: object, file: SourceFile) -> Use:
    if file.method in _WITH_ANSWERS:
        return _BATCH(value, file)  # type: ignore[no-any-return] # a `Use`
    return Use({"optimisation.gradient_accumulation_steps": value})


def _answers(file: SourceFile) -> int:
    return 2 if file.method == "rloo" else 8


def _rounds(value: object, file: SourceFile) -> Use:
    """Return steps per round of writing: TRL counts the batches that a step accumulates, too."""
    batches = conversions.number(file.get("gradient_accumulation_steps")) or 1.0
    steps = conversions.number(value) / batches
    note = "It counts batches there, and steps here."
    return Use({"rollouts.steps_per_generation": max(1, round(steps))}, note)


def _scaling(value: object, _file: SourceFile) -> str:
    return {"true": "group", "false": "none"}.get(str(value).lower(), str(value).lower())


def _reference(value: object, file: SourceFile) -> Use:
    section = "rating" if file.method == "kto" else "preference"
    return Use({f"{section}.reference": "automatic" if is_off(value) else "precomputed"})


def _centring(value: object, _file: SourceFile) -> float:
    return 0.0 if is_off(value) else conversions.number(value)


def _order(file: SourceFile) -> object:
    return "sequential" if file.method == "kto" else "random"


def _teacher(value: object, _file: SourceFile) -> Use:
    return Use({"distillation.teacher": str(value), "distillation.answers": "student"})


def _only_answers(value: object, _file: SourceFile) -> Use:
    note = "Only answers of conversations are trained on here, and every token of plain texts."
    return Use(note="" if value is True else note)


_MODEL = (
    same("model_name_or_path", convert=conversions.base_model),
    combined("dtype", _precision, default="float32"),
    combined("torch_dtype", _precision),
    combined("bf16", _precision),
    combined("fp16", _precision),
    combined("tf32", precision.if_on(_precision)),
    same("attn_implementation", "model.attention", convert=conversions.attention),
    same("use_peft", convert=_kind, default=False),
    same("lora_r", "adapter.r", default=16),
    same("lora_alpha", "adapter.lora_alpha", default=32),
    same("lora_dropout", "adapter.lora_dropout", default=0.05),
    same("lora_target_modules", convert=_targets, default=""),
    same("lora_modules_to_save", convert=conversions.modules_in_full),
    same("use_rslora", "adapter.use_rslora"),
    same("use_dora", convert=_variant),
    same("load_in_4bit", convert=_bits),
    same("load_in_8bit", convert=_bits),
    same("use_bnb_nested_quant", convert=_nested_scales, default=False),
    always("bnb_4bit_quant_type", ("nf4",), advice.QUANTISATION),
    *absent(advice.ADAPTER_DETAILS, "lora_target_parameters", "bnb_4bit_quant_storage"),
    always("lora_task_type", ("CAUSAL_LM", "SEQ_CLS", "TOKEN_CLS"), advice.ADAPTER_DETAILS),
    *absent(advice.REMOTE_CODE, "trust_remote_code"),
    always("model_revision", ("main",), advice.REVISION),
    *absent(
        advice.MODEL_CLASS, "model_init_kwargs", "cast_lm_head_to_fp32", "router_aux_loss_coef"
    ),
)
_DATA = (
    same("dataset_name", convert=conversions.dataset),
    same("datasets", convert=conversions.dataset),
    same("max_length", "data.max_length", default=1024),
    same("max_seq_length", "data.max_length"),
    same("packing", "data.packing", convert=lambda value, _file: not is_off(value)),
    same("completion_only_loss", convert=_only_answers),
    same("assistant_only_loss", convert=_only_answers),
    *absent(advice.VALIDATION_DATA, "dataset_test_split", "test_split_size"),
    *absent(advice.SUBSETS, "dataset_config", "dataset_train_split"),
    *absent(
        advice.LOADING,
        "dataset_streaming",
        "streaming",
        "ignore_bias_buffers",
        "dataset_kwargs",
        "shuffle_dataset",
    ),
    *absent(advice.COLUMNS, "dataset_text_field"),
    *absent(advice.PACKING_DETAILS, "packing_strategy", "padding_free", "eval_packing"),
    *absent(advice.PADDING, "pad_to_multiple_of", "pad_token"),
    *absent(advice.TEMPLATE, "chat_template_path", "chat_template_kwargs", "eos_token"),
    always("truncation_mode", ("keep_start",), advice.LENGTHS),
)
_LEARNING = (
    same("learning_rate", "optimisation.learning_rate", default=_rate),
    same("per_device_train_batch_size", convert=_batch, default=8),
    same("gradient_accumulation_steps", convert=_accumulation, default=1),
    same(
        "gradient_checkpointing",
        "optimisation.activation_checkpointing",
        default=True,
        convert=lambda value, _file: not is_off(value),
    ),
    same("train_sampling_strategy", "optimisation.train_sampling_strategy", default=_order),
    same("loss_type", convert=_loss),
    same("beta", "preference.beta", "rating.beta", "policy.beta", "distillation.beta"),
    same("label_smoothing", "preference.label_smoothing"),
    same(
        "f_divergence_type",
        "preference.divergence",
        convert=conversions.choice(_DIVERGENCES, advice.ALGORITHM),
    ),
    same("f_alpha_divergence_coef", "preference.divergence_alpha"),
    same("ld_alpha", "preference.tail_weight"),
    same("use_weighting", "preference.confidence_weighted"),
    same("precompute_ref_log_probs", convert=_reference),
    same("desirable_weight", "rating.good_weight", default=1.0),
    same("undesirable_weight", "rating.bad_weight", default=1.0),
    same("center_rewards_coefficient", "scoring.centring", convert=_centring, default=False),
    same("teacher_model_name_or_path", convert=_teacher),
    *absent(advice.REVISION, "teacher_model_revision", "teacher_model_init_kwargs"),
    *absent(advice.BATCHES, "precompute_ref_batch_size"),
    *absent(advice.ALGORITHM, "loss_weights", "discopop_tau"),
    *absent(advice.REFERENCE, "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"),
    always("disable_dropout", (True, False), advice.ALGORITHM),
)
_ROLLOUTS = (
    same("num_generations", "rollouts.answers_per_prompt", default=_answers),
    same("num_generations_eval", "rollouts.validation_answers"),
    same(
        "max_completion_length",
        "rollouts.max_new_tokens",
        "distillation.max_new_tokens",
        default=512,
    ),
    same("temperature", "rollouts.temperature", "distillation.sampling_temperature"),
    same("steps_per_generation", convert=_rounds),
    same("epsilon", "policy.epsilon"),
    same("epsilon_high", "policy.epsilon_high"),
    same("importance_sampling_level", "policy.importance_level"),
    same("scale_rewards", "policy.scale_rewards", convert=_scaling),
    same("mask_truncated_completions", "policy.mask_truncated"),
    same("normalize_advantages", "policy.normalise"),
    always("num_iterations", (1,), advice.ALGORITHM),
    always("top_p", (1, 1.0), advice.ENGINE),
    always("repetition_penalty", (1, 1.0), advice.ENGINE),
    always("top_entropy_quantile", (1, 1.0), advice.ALGORITHM),
    always("multi_objective_aggregation", ("sum_then_normalize",), advice.REWARDS),
    *absent(
        advice.REWARDS,
        "reward_funcs",
        "reward_weights",
        "reward_model_name_or_path",
        "reward_clip_range",
        "max_tool_calling_iterations",
    ),
    *absent(
        advice.ENGINE,
        "generation_batch_size",
        "generation_kwargs",
        "top_k",
        "min_p",
        "cache_implementation",
        "ds3_gather_for_generation",
        "use_vllm",
        "vllm_mode",
        "vllm_model_impl",
        "vllm_enable_sleep_mode",
        "vllm_structured_outputs_regex",
        "vllm_server_base_url",
        "vllm_server_host",
        "vllm_server_port",
        "vllm_server_timeout",
        "vllm_group_port",
        "vllm_gpu_memory_utilization",
        "vllm_max_model_length",
        "vllm_tensor_parallel_size",
        "vllm_importance_sampling_correction",
        "vllm_importance_sampling_mode",
        "vllm_importance_sampling_clip_max",
        "vllm_importance_sampling_clip_min",
        "vllm_importance_sampling_cap",
        "use_transformers_paged",
        "use_transformers_continuous_batching",
        "transformers_continuous_batching_config",
    ),
    *absent(
        advice.ALGORITHM,
        "delta",
        "sapo_temperature_neg",
        "sapo_temperature_pos",
        "vespo_k_pos",
        "vespo_lambda_pos",
        "vespo_k_neg",
        "vespo_lambda_neg",
        "entropy_coef",
        "use_adaptive_entropy",
        "entropy_coef_min",
        "entropy_coef_max",
        "entropy_coef_delta",
        "entropy_target",
        "off_policy_mask_threshold",
        "use_bias_correction_kl",
    ),
    *absent(
        advice.TRACKING,
        "log_completions",
        "log_multimodal",
        "num_completions_to_print",
        "log_unique_prompts",
        "log_completions_hub_repo",
    ),
)
_HERE = {row.key for row in (*_MODEL, *_DATA, *_LEARNING, *_ROLLOUTS)}

TRL = Tool(
    name="trl",
    title="TRL",
    marks=frozenset(
        {
            "dataset_name",
            "use_peft",
            "lora_r",
            "lora_target_modules",
            "attn_implementation",
            "dataset_train_split",
            "max_completion_length",
            "num_generations",
            "dataset_config",
            "assistant_only_loss",
            "model_name_or_path",
            "loss_type",
        }
    ),
    rows=(
        *_MODEL,
        *_DATA,
        *_LEARNING,
        *_ROLLOUTS,
        *(
            row
            for row in (
                *trainer_arguments.OPTIMISATION,
                *trainer_arguments.EVALUATION,
                *trainer_arguments.OTHERS,
            )
            if row.key not in _HERE
        ),
    ),
    find_method=find_method,
    remarks=remarks,
)
