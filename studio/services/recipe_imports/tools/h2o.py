"""H2O LLM Studio: the configuration that it exports of an experiment."""

from studio.services.recipe_imports import advice, conversions
from studio.services.recipe_imports.table import (
    NAME,
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
from studio.services.recipe_imports.tools import precision

_METHODS = {
    "text_causal_language_modeling": "sft",
    "text_dpo_modeling": "dpo",
    "text_rlhf_language_modeling": "grpo",
    "text_sequence_to_sequence_modeling": "seq2seq",
    "text_causal_classification_modeling": "classify",
    "text_causal_regression_modeling": "regress",
}
_PAIR_LOSSES = {
    "dpoloss": "sigmoid",
    "hingeloss": "hinge",
    "ipoloss": "ipo",
    "simpoloss": "simpo",
    "cpoloss": "cpo",
}
_SAME_LOSSES = {
    "sft": ("tokenaveragedcrossentropy", "crossentropyloss", "crossentropy"),
    "seq2seq": ("tokenaveragedcrossentropy", "crossentropyloss", "crossentropy"),
    "classify": ("crossentropyloss", "binarycrossentropyloss"),
}
_NUMBER_LOSSES = {"mseloss": "mse", "maeloss": "mae"}
_OPTIMISERS = {"adamw": "adamw_torch", "adamw8bit": "adamw_8bit", "sgd": "sgd"}
_OLD_DTYPE = "float16"
"""What mixed precision was before it could be chosen."""
_FLOAT16_WEIGHTS = (
    "There, it trains in float16 throughout, which is unstable. Here, weights are float32, and "
    "products are float16."
)
_WITHOUT_MIXING = (
    "There, it computes in the format of the frozen model. Here, bfloat16 or float16 mixed do."
)


def find_method(file: SourceFile) -> str:
    kind = str(file.get("problem_type"))
    if kind in _METHODS:
        return _METHODS[kind]
    return "dpo" if file.has("dataset.rejected_answer_column") else "sft"


def _problem_type(value: object, _file: SourceFile) -> Use:
    name = str(value)
    if name not in _METHODS:
        raise NoCounterpartError("Choose a method in the form.")
    return Use({"method": _METHODS[name]}, advice.NO_PPO if _METHODS[name] == "grpo" else "")


def _lora(value: object, _file: SourceFile) -> Use:
    return Use({"adapter.kind": "full" if is_off(value) else "lora"})


def _precision(_value: object, file: SourceFile) -> Use:
    """Return what the format of the backbone and mixed precision mean together."""
    weights = str(file.get("architecture.backbone_dtype"))
    is_mixed = bool(file.get("environment.mixed_precision"))
    compute = str(file.get("environment.mixed_precision_dtype"))
    if is_off(file.get("training.lora")):
        return _full(weights, compute if is_mixed else "float32")
    bits = {"int4": "nf4", "int8": "int8"}.get(weights, "")
    frozen = weights if weights in ("float32", "bfloat16", "float16") else "float16"
    used = precision.for_adapter(compute if is_mixed else frozen, frozen, is_quantised=bool(bits))
    if bits:
        used = Use({**used.settings, "adapter.base_dtype": bits}, used.note)
    is_other = not is_mixed and frozen != "float32"
    return precision.with_note(used, _WITHOUT_MIXING) if is_other else used


def _full(weights: str, compute: str) -> Use:
    """Return the precision of a full fine-tune: only float32 weights are mixed with another."""
    if weights in ("int4", "int8"):
        raise NoCounterpartError("Quantised weights cannot be trained. Choose a LoRA adapter.")
    if weights == "float16":
        return Use({"precision": "fp16"}, _FLOAT16_WEIGHTS)
    if weights == "bfloat16":
        return Use({"precision": "bf16_pure"})
    return Use({"precision": precision.mixed(compute)})


def _targets(value: object, file: SourceFile) -> Use:
    if not str(value).strip():
        return Use({"adapter.target_modules": "all-linear"})
    return conversions.targets(value, file)


def _warmup(value: object, file: SourceFile) -> Use:
    """Return a share of the run: it is in epochs there."""
    share = conversions.number(value) / (conversions.number(file.get("training.epochs")) or 1.0)
    note = "It is in epochs there, and a share of the run here." if share else ""
    return Use({"optimisation.warmup_steps": share}, note)


def _loss(value: object, file: SourceFile) -> Use:
    name = str(value).lower()
    if file.method == "dpo" and name in _PAIR_LOSSES:
        return Use({"preference.loss_type": _PAIR_LOSSES[name]})
    if file.method == "regress" and name in _NUMBER_LOSSES:
        return Use({"numbers.error": _NUMBER_LOSSES[name]})
    if name in _SAME_LOSSES.get(file.method, ()):
        return Use()
    raise NoCounterpartError(
        "Every trained token counts equally here. Other losses are in the form."
    )


def _evaluations(value: object, file: SourceFile) -> Use:
    passes = conversions.number(value) / max(1.0, conversions.number(file.get("training.epochs")))
    if passes >= 1:
        return Use({"evaluation.eval_steps": 0.5}, "Here, a run is validated halfway, too.")
    return Use(
        {"evaluation.eval_steps": passes}, "It is in epochs there, and a share of the run here."
    )


def _checkpoint(value: object, _file: SourceFile) -> Use:
    best = value is True or str(value) == "best"
    return Use({"checkpoints.load_best_model_at_end": best})


def _seed(value: object, _file: SourceFile) -> Use:
    seed = int(conversions.number(value))
    if seed < 0:
        return Use(note="There, it means another seed each time. Here, runs have the seed 42.")
    return Use({"optimisation.seed": seed})


def _differential(value: object, file: SourceFile) -> Use:
    """Return the learning rate of the embeddings, if these have one of their own."""
    layers = conversions.texts(file.get("training.differential_learning_rate_layers") or [])
    if not layers:
        return Use()
    if set(layers) != {"embed"}:
        raise NoCounterpartError(advice.LEARNING_RATES)
    return Use({"optimisation.embedding_learning_rate": conversions.number(value)})


_DATA = (
    same("dataset.train_dataframe", convert=conversions.dataset),
    same("dataset.validation_size", convert=conversions.validation_share),
    always("dataset.validation_strategy", ("automatic",), advice.VALIDATION_DATA),
    *absent(advice.VALIDATION_DATA, "dataset.validation_dataframe"),
    *absent(advice.SAMPLE, "dataset.data_sample_choice"),
    always("dataset.data_sample", (1, 1.0), advice.SAMPLE),
    *absent(
        advice.COLUMNS,
        "dataset.system_column",
        "dataset.prompt_column",
        "dataset.answer_column",
        "dataset.parent_id_column",
        "dataset.id_column",
        "dataset.rejected_prompt_column",
        "dataset.rejected_answer_column",
        "dataset.prompt_column_separator",
        "dataset.num_classes",
        "dataset.limit_chained_samples",
    ),
    *absent(
        advice.TEMPLATE,
        "dataset.text_system_start",
        "dataset.text_prompt_start",
        "dataset.text_answer_separator",
        "dataset.add_eos_token_to_system",
        "dataset.add_eos_token_to_prompt",
        "dataset.add_eos_token_to_answer",
    ),
    always("dataset.mask_prompt_labels", (True,), advice.MASKING),
    always("dataset.only_last_answer", (False,), advice.MASKING),
    *absent(
        advice.ANSWERS, "dataset.personalize", "dataset.chatbot_name", "dataset.chatbot_author"
    ),
)
_ARCHITECTURE = (
    same("llm_backbone", convert=conversions.base_model),
    combined("architecture.backbone_dtype", _precision, default="int4"),
    combined("environment.mixed_precision", _precision, default=True),
    combined("environment.mixed_precision_dtype", _precision, default=_OLD_DTYPE),
    same(
        "architecture.gradient_checkpointing", "optimisation.activation_checkpointing", default=True
    ),
    always("architecture.pretrained", (True,), advice.ALGORITHM),
    *absent(advice.ALGORITHM, "architecture.intermediate_dropout"),
    *absent(advice.CONTINUE, "architecture.pretrained_weights"),
    *absent(advice.PARTS, "architecture.force_embedding_gradients", "training.freeze_layers"),
    *absent(advice.KERNELS, "environment.compile_model"),
    same(
        "training.use_flash_attention_2",
        convert=lambda value, _file: (
            Use() if is_off(value) else Use({"model.attention": "flash_attention_2"})
        ),
    ),
    same("training.attention_implementation", "model.attention", convert=conversions.attention),
)
_TRAINING = (
    same("problem_type", convert=_problem_type),
    same("experiment_name", NAME),
    same("tokenizer.max_length", "data.max_length", default=512),
    same("training.lora", convert=_lora, default=True),
    same("training.lora_r", "adapter.r", default=4),
    same("training.lora_alpha", "adapter.lora_alpha", default=16),
    same("training.lora_dropout", "adapter.lora_dropout", default=0.05),
    same("training.lora_target_modules", convert=_targets, default=""),
    same(
        "training.lora_unfreeze_layers",
        convert=lambda value, file: (
            Use() if is_off(value) or not value else conversions.modules_in_full(value, file)
        ),
    ),
    same(
        "training.use_dora",
        convert=lambda value, _file: Use() if is_off(value) else Use({"adapter.variant": "dora"}),
    ),
    same("training.use_rslora", "adapter.use_rslora"),
    same("training.learning_rate", "optimisation.learning_rate", default=1e-4),
    combined("training.differential_learning_rate", _differential),
    combined(
        "training.differential_learning_rate_layers",
        lambda value, _file: (
            Use() if is_off(value) or not value else Use(note=advice.LEARNING_RATES)
        ),
    ),
    same("training.batch_size", "optimisation.per_device_train_batch_size", default=2),
    same("training.grad_accumulation", "optimisation.gradient_accumulation_steps", default=1),
    same("training.epochs", "optimisation.num_train_epochs", default=1),
    same(
        "training.schedule",
        "optimisation.lr_scheduler_type",
        convert=conversions.schedule,
        default="cosine",
    ),
    same("training.warmup_epochs", convert=_warmup, default=0.0),
    same("training.weight_decay", "optimisation.weight_decay", default=0.0),
    same("training.gradient_clip", convert=conversions.gradient_clipping, default=0.0),
    same(
        "training.optimizer",
        "optimisation.optim",
        convert=conversions.choice(_OPTIMISERS, advice.OPTIMISER),
    ),
    same("training.loss_function", convert=_loss),
    same("training.beta", "preference.beta", default=0.2),
    same(
        "training.simpo_gamma",
        convert=conversions.simpo_margin("training.loss_function", "training.beta"),
        default=1.0,
    ),
    same("training.evaluation_epochs", convert=_evaluations),
    same("training.save_checkpoint", convert=_checkpoint),
    same("training.save_best_checkpoint", convert=_checkpoint),
    *absent(advice.SCHEDULE_DETAILS, "training.min_learning_rate_ratio"),
    *absent(advice.EVALUATION, "training.evaluate_before_training"),
    *absent(advice.VALIDATION_DATA, "training.train_validation_data"),
    *absent(advice.LOADING, "training.drop_last_batch"),
    same(
        "augmentation.neftune_noise_alpha",
        "optimisation.neftune_noise_alpha",
        convert=conversions.noise,
    ),
    *absent(
        advice.ALGORITHM,
        "augmentation.token_mask_probability",
        "augmentation.skip_parent_probability",
        "augmentation.random_parent_probability",
    ),
    same("environment.seed", convert=_seed),
)
_OTHERS = (
    *absent(advice.PADDING, "tokenizer.padding_quantile"),
    *absent(advice.LENGTHS, "tokenizer.max_length_prompt", "tokenizer.max_length_answer"),
    *absent(advice.VOCABULARY, "tokenizer.add_prompt_answer_tokens"),
    *absent(
        advice.MODEL_CLASS,
        "tokenizer.use_fast",
        "tokenizer.add_prefix_space",
        "tokenizer.tokenizer_kwargs",
    ),
    *absent(advice.ANSWERS, "prediction"),
    *absent(advice.TRACKING, "logging"),
    *absent(advice.FOLDERS, "output_directory"),
    *absent(
        advice.CLUSTER,
        "environment.gpus",
        "environment.use_deepspeed",
        "environment.use_fsdp",
        "environment.find_unused_parameters",
        "environment.deepspeed_method",
        "environment.deepspeed_allgather_bucket_size",
        "environment.deepspeed_reduce_bucket_size",
        "environment.deepspeed_stage3_prefetch_bucket_size",
        "environment.deepspeed_stage3_param_persistence_threshold",
    ),
    *absent(advice.LOADING, "environment.number_of_workers"),
    *absent(advice.REMOTE_CODE, "environment.trust_remote_code"),
    always("environment.huggingface_branch", ("main",), advice.REVISION),
    *absent(
        advice.REWARDS,
        "reward_model",
        "training.ppo_epochs",
        "training.ppo_batch_size",
        "training.reward_model",
    ),
)

H2O = Tool(
    name="h2o_llm_studio",
    title="H2O LLM Studio",
    marks=frozenset(
        {
            "llm_backbone",
            "problem_type",
            "architecture.backbone_dtype",
            "dataset.prompt_column",
            "training.lora",
            "training.epochs",
            "training.grad_accumulation",
            "dataset.train_dataframe",
            "tokenizer.max_length",
            "tokenizer.max_length_prompt",
        }
    ),
    rows=(*_DATA, *_ARCHITECTURE, *_TRAINING, *_OTHERS),
    find_method=find_method,
)
