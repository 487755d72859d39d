"""LLaMA-Factory: the YAML files of `llamafactory-cli train`."""

from typing import Any

from studio.services.recipe_imports import advice, conversions
from studio.services.recipe_imports.table import (
    Convert,
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

_METHODS = {"sft": "sft", "pt": "cpt", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "grpo"}
_IMAGE_KEYS = ("image_max_pixels", "freeze_vision_tower", "freeze_multi_modal_projector")
_BITS = {8: "int8", 4: "nf4"}
_PAIR_LOSSES: dict[str, dict[str, Any]] = {
    "sigmoid": {"preference.loss_type": "sigmoid"},
    "hinge": {"preference.loss_type": "hinge"},
    "ipo": {"preference.loss_type": "ipo"},
    "simpo": {"preference.loss_type": "simpo"},
    "orpo": {"preference.loss_type": "orpo", "preference.sft_weight": 1.0},
}


def find_method(file: SourceFile) -> str:
    method = _METHODS.get(str(file.get("stage")), "sft")
    has_images = any(key in file.written for key in _IMAGE_KEYS)
    return "vision" if method == "sft" and has_images else method


def _stage(value: object, file: SourceFile) -> Use:
    if str(value) not in _METHODS:
        raise NoCounterpartError("Choose a method in the form.")
    return Use({"method": find_method(file)}, advice.NO_PPO if value == "ppo" else "")


def _kind(value: object, file: SourceFile) -> Use:
    match value:
        case "lora" | "oft" | "full":
            return Use({"adapter.kind": value})
        case "freeze":
            layers = int(conversions.number(file.get("freeze_trainable_layers")))
            if layers <= 0:
                raise NoCounterpartError(
                    "Layers are counted from the output: the last ones are trained."
                )
            return Use({"adapter.kind": "full", "adapter.trained_layers": layers})
    raise NoCounterpartError("Choose what to train in the form.")


def _layers(_value: object, file: SourceFile) -> Use:
    if file.get("finetuning_type") != "freeze":
        return Use()
    return _kind("freeze", file)


def _precision(_value: object, file: SourceFile) -> Use:
    return precision.with_tf32(_switches(file), is_on=file.has("tf32"))


def _switches(file: SourceFile) -> Use:
    """Return what the switches for 16 bits mean together: trained weights become float32.

    Only `pure_bf16` keeps them in bfloat16.
    """
    is_adapter = file.get("finetuning_type") in ("lora", "oft")
    is_quantised = not is_off(file.get("quantization_bit"))
    if file.has("fp8"):
        if is_adapter:
            used = precision.for_adapter("bfloat16", "bfloat16", is_quantised=is_quantised)
            return precision.with_note(used, precision.FLOAT8_PRODUCTS)
        return Use({"precision": "fp8"})
    if file.has("pure_bf16") and not is_adapter:
        return Use({"precision": "bf16_pure"})
    formats = {"pure_bf16": "bfloat16", "bf16": "bfloat16", "fp16": "float16"}
    compute = next((format_ for key, format_ in formats.items() if file.has(key)), "")
    if compute and is_adapter:
        used = precision.for_adapter(compute, compute, is_quantised=is_quantised)
        return precision.with_note(used, precision.FROZEN_ONLY if file.has("pure_bf16") else "")
    if compute or not is_adapter:
        return Use({"precision": precision.mixed(compute)})
    return Use({"precision": "auto"}, precision.AS_SAVED)


def _bits(value: object, _file: SourceFile) -> str:
    if name := precision.quantised(_BITS, value):
        return name
    raise NoCounterpartError(advice.QUANTISATION)


def _pair_loss(value: object, _file: SourceFile) -> Use:
    if str(value) not in _PAIR_LOSSES:
        raise NoCounterpartError("For answers that are rated one by one, choose Ratings (KTO).")
    return Use(_PAIR_LOSSES[str(value)])


def _packing(value: object, file: SourceFile) -> Use:
    is_on = not is_off(value)
    note = "Rows in a pack never see each other here. There, they do without neat_packing."
    blind = is_on and not file.has("neat_packing") and file.get("stage") != "pt"
    return Use({"data.packing": is_on}, note if blind else "")


def _rank_twice(file: SourceFile) -> int:
    return int(conversions.number(file.get("lora_rank"))) * 2


def _variant(name: str) -> Convert:
    return lambda value, _file: Use() if is_off(value) else Use({"adapter.variant": name})


def _rope(value: object, _file: SourceFile) -> Use:
    if value not in ("linear", "dynamic", "yarn", "llama3"):
        raise NoCounterpartError("Choose Longer context in the form.")
    note = "There, the factor follows from cutoff_len. Set the Context factor here."
    return Use({"model.rope_type": value}, note)


_MODEL = (
    same("model_name_or_path", convert=conversions.base_model),
    same("quantization_bit", "adapter.base_dtype", convert=_bits),
    always("quantization_method", ("bnb", "bitsandbytes"), advice.QUANTISATION),
    always("quantization_type", ("nf4",), advice.QUANTISATION),
    always("double_quantization", (True,), advice.QUANTISATION),
    same("flash_attn", "model.attention", convert=conversions.attention),
    same("rope_scaling", convert=_rope),
    same("add_tokens", "model.new_tokens", convert=conversions.new_tokens),
    same("add_special_tokens", "model.new_tokens", convert=conversions.new_tokens),
    same("image_max_pixels", "vision.max_pixels"),
    same(
        "disable_gradient_checkpointing",
        "optimisation.activation_checkpointing",
        convert=conversions.inverted,
        default=False,
    ),
    *absent(advice.VOCABULARY, "resize_vocab", "new_special_tokens_config", "init_special_tokens"),
    *absent(advice.CONTINUE, "adapter_name_or_path", "adapter_folder", "create_new_adapter"),
    *absent(advice.REMOTE_CODE, "trust_remote_code"),
    *absent(advice.REVISION, "model_revision"),
    *absent(advice.TOKENS, "hf_hub_token", "ms_hub_token", "om_hub_token"),
    *absent(
        advice.KERNELS,
        "use_unsloth",
        "use_unsloth_gc",
        "enable_liger_kernel",
        "shift_attn",
        "use_reentrant_gc",
        "use_v1_kernels",
        "use_kt",
    ),
    *absent(advice.ALGORITHM, "mixture_of_depths", "train_from_scratch", "moe_aux_loss_coef"),
    *absent(
        advice.ANSWERS,
        "infer_backend",
        "infer_dtype",
        "use_kv_cache",
        "offload_folder",
        "cpu_infer",
    ),
    *absent(
        advice.LOADING,
        "cache_dir",
        "use_fast_tokenizer",
        "split_special_tokens",
        "low_cpu_mem_usage",
        "print_param_status",
        "upcast_layernorm",
        "upcast_lmhead_output",
        "quantization_device_map",
    ),
    *absent(
        advice.IMAGES,
        "image_min_pixels",
        "image_do_pan_and_scan",
        "crop_to_patches",
        "video_max_pixels",
        "video_min_pixels",
        "video_fps",
        "video_maxlen",
        "use_audio_in_video",
        "audio_sampling_rate",
    ),
    *absent(
        advice.HUB,
        "export_dir",
        "export_size",
        "export_device",
        "export_quantization_bit",
        "export_quantization_dataset",
        "export_legacy_format",
        "export_hub_model_id",
    ),
    *absent(advice.CLUSTER, "fp8_backend", "fp8_enable_fsdp_float8_all_gather"),
)
_DATA = (
    same("dataset", convert=conversions.dataset),
    same("template", convert=conversions.chat_template),
    same("cutoff_len", "data.max_length", default=2048),
    same("packing", convert=_packing),
    same("neat_packing", convert=_packing),
    same("val_size", convert=conversions.validation_share, default=0.0),
    *absent(advice.VALIDATION_DATA, "eval_dataset", "eval_on_each_dataset"),
    *absent(advice.SAMPLE, "max_samples"),
    *absent(advice.MIXTURE, "mix_strategy", "interleave_probs"),
    *absent(advice.MASKING, "train_on_prompt", "mask_history"),
    *absent(
        advice.LOADING,
        "dataset_dir",
        "media_dir",
        "overwrite_cache",
        "streaming",
        "buffer_size",
        "preprocessing_batch_size",
        "preprocessing_num_workers",
        "tokenized_path",
        "data_shared_file_system",
    ),
    *absent(advice.TEMPLATE, "tool_format", "default_system", "enable_thinking"),
    always("ignore_pad_token_for_loss", (True,), advice.MASKING),
)
_ADAPTER = (
    same("finetuning_type", convert=_kind, default="lora"),
    same("freeze_trainable_layers", convert=_layers, default=2),
    same("lora_rank", "adapter.r", default=8),
    same("lora_alpha", "adapter.lora_alpha", default=_rank_twice),
    same("lora_dropout", "adapter.lora_dropout", default=0.0),
    same("lora_target", convert=conversions.targets, default="all"),
    same("additional_target", convert=conversions.modules_in_full),
    same("loraplus_lr_ratio", "adapter.lr_ratio"),
    same("use_rslora", "adapter.use_rslora"),
    same("use_dora", convert=_variant("dora")),
    same("pissa_init", convert=_variant("pissa")),
    same("oft_block_size", "adapter.oft_block_size"),
    same("oft_target", convert=conversions.targets),
    always("freeze_trainable_modules", ("all",), advice.LAYERS),
    *absent(advice.LAYERS, "freeze_extra_modules", "use_llama_pro"),
    *absent(advice.ADAPTER_DETAILS, "pissa_iter", "pissa_convert", "module_dropout", "oft_rank"),
    *absent(advice.LEARNING_RATES, "loraplus_lr_embedding"),
)
_LEARNING = (
    same("stage", convert=_stage, default="sft"),
    same("learning_rate", "optimisation.learning_rate", default=5e-5),
    same("per_device_train_batch_size", "optimisation.per_device_train_batch_size", default=8),
    same("gradient_accumulation_steps", "optimisation.gradient_accumulation_steps", default=1),
    combined("bf16", _precision, default=False),
    combined("fp16", _precision),
    combined("pure_bf16", _precision),
    combined("fp8", _precision),
    combined("tf32", precision.if_on(_precision)),
    same("pref_beta", "preference.beta", "rating.beta", default=0.1),
    same("pref_loss", convert=_pair_loss),
    same("pref_ftx", "preference.sft_weight"),
    same("dpo_label_smoothing", "preference.label_smoothing"),
    same("ld_alpha", "preference.tail_weight"),
    same("simpo_gamma", convert=conversions.simpo_margin("pref_loss", "pref_beta")),
    same("kto_chosen_weight", "rating.good_weight", default=1.0),
    same("kto_rejected_weight", "rating.bad_weight", default=1.0),
    same(
        "use_dft_loss",
        convert=lambda value, _file: (
            Use() if is_off(value) else Use({"optimisation.loss_type": "dft"})
        ),
    ),
    same(
        "use_muon",
        convert=lambda value, _file: (
            Use() if is_off(value) else Use({"optimisation.optim": "muon"})
        ),
    ),
    same("freeze_vision_tower", "vision.freeze_tower"),
    same("freeze_multi_modal_projector", "vision.freeze_projector"),
    same(
        "disable_shuffling",
        "optimisation.train_sampling_strategy",
        convert=conversions.sampling(by_length=False),
        default=False,
    ),
    same("early_stopping_steps", "early_stopping.early_stopping_patience"),
    *absent(advice.REFERENCE, "ref_model", "ref_model_adapters", "ref_model_quantization_bit"),
    *absent(
        advice.REWARDS,
        "reward_model",
        "reward_model_adapters",
        "reward_model_quantization_bit",
        "reward_model_type",
    ),
    *absent(
        advice.ALGORITHM,
        "pref_bco_weight",
        "ppo_buffer_size",
        "ppo_epochs",
        "ppo_score_norm",
        "ppo_target",
        "ppo_whiten_rewards",
        "use_galore",
        "galore_target",
        "galore_rank",
        "galore_update_interval",
        "galore_scale",
        "galore_proj_type",
        "galore_layerwise",
        "use_apollo",
        "apollo_target",
        "apollo_rank",
        "apollo_update_interval",
        "apollo_scale",
        "apollo_proj",
        "apollo_proj_type",
        "apollo_scale_type",
        "apollo_layerwise",
        "apollo_scale_front",
        "use_badam",
        "badam_mode",
        "badam_start_block",
        "badam_switch_mode",
        "badam_switch_interval",
        "badam_update_ratio",
        "badam_mask_mode",
        "badam_verbose",
        "use_adam_mini",
        "use_mca",
        "freeze_language_model",
        "use_asft_loss",
        "asft_alpha",
        "use_eaft_loss",
        "eaft_alpha",
    ),
    *absent(
        advice.TRACKING,
        "use_swanlab",
        "swanlab_project",
        "swanlab_workspace",
        "swanlab_run_name",
        "swanlab_mode",
        "swanlab_api_key",
        "swanlab_logdir",
        "swanlab_lark_webhook_url",
        "swanlab_lark_secret",
        "plot_loss",
        "include_effective_tokens_per_second",
    ),
    *absent(advice.EVALUATION, "compute_accuracy"),
    *absent(
        advice.ANSWERS,
        "predict_with_generate",
        "do_sample",
        "temperature",
        "top_p",
        "top_k",
        "num_beams",
        "max_new_tokens",
        "max_length",
        "repetition_penalty",
        "length_penalty",
        "generation_max_length",
        "generation_num_beams",
        "eval_num_beams",
        "skip_special_tokens",
    ),
    *absent(
        advice.CLUSTER,
        "ray_run_name",
        "ray_storage_path",
        "ray_num_workers",
        "resources_per_worker",
        "placement_strategy",
        "ray_init_kwargs",
    ),
)

LLAMA_FACTORY = Tool(
    name="llama_factory",
    title="LLaMA-Factory",
    marks=frozenset(
        {
            "stage",
            "finetuning_type",
            "cutoff_len",
            "lora_rank",
            "lora_target",
            "quantization_bit",
            "pref_loss",
            "pref_beta",
            "dataset_dir",
            "pure_bf16",
            "flash_attn",
            "neat_packing",
        }
    ),
    rows=(
        *_MODEL,
        *_DATA,
        *_ADAPTER,
        *_LEARNING,
        *trainer_arguments.OPTIMISATION,
        *trainer_arguments.EVALUATION,
        *trainer_arguments.OTHERS,
    ),
    find_method=find_method,
)
