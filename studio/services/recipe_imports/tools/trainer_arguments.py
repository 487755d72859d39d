"""The arguments of transformers' Trainer, which LLaMA-Factory and TRL also take."""

from studio.services.recipe_imports import advice, conversions
from studio.services.recipe_imports.table import NAME, Row, SourceFile, Use, absent, always, same


def _checkpointing(value: object, _file: SourceFile) -> bool:
    return value not in (False, None)


def _eval_steps(value: object, _file: SourceFile) -> Use:
    return Use({"evaluation.eval_steps": conversions.number(value)})


def _logging_steps(value: object, _file: SourceFile) -> Use:
    steps = conversions.number(value)
    if steps < 1:
        return Use(note="Here it is a number of steps: each step is logged by default.")
    return Use({"evaluation.logging_steps": int(steps)})


OPTIMISATION: tuple[Row, ...] = (
    same("num_train_epochs", "optimisation.num_train_epochs", default=3.0),
    same("max_steps", "optimisation.max_steps", convert=conversions.max_steps),
    same(
        "lr_scheduler_type",
        "optimisation.lr_scheduler_type",
        convert=conversions.schedule,
        default="linear",
    ),
    same("warmup_steps", "optimisation.warmup_steps", default=0),
    same("warmup_ratio", "optimisation.warmup_steps", convert=conversions.warmup_share),
    same("optim", "optimisation.optim", convert=conversions.optimiser),
    same("weight_decay", "optimisation.weight_decay"),
    same("max_grad_norm", convert=conversions.gradient_clipping),
    same("seed", "optimisation.seed"),
    same("label_smoothing_factor", "rewriting.label_smoothing"),
    same("neftune_noise_alpha", "optimisation.neftune_noise_alpha", convert=conversions.noise),
    same(
        "group_by_length",
        "optimisation.train_sampling_strategy",
        convert=conversions.sampling(by_length=True),
    ),
    same("train_sampling_strategy", "optimisation.train_sampling_strategy"),
    same(
        "activation_checkpointing", "optimisation.activation_checkpointing", convert=_checkpointing
    ),
    same("activation_offloading", "optimisation.activation_offloading"),
)
EVALUATION: tuple[Row, ...] = (
    same("eval_strategy", convert=conversions.validation_strategy("num_train_epochs")),
    same("evaluation_strategy", convert=conversions.validation_strategy("num_train_epochs")),
    same("eval_steps", convert=_eval_steps),
    same("per_device_eval_batch_size", "evaluation.per_device_eval_batch_size"),
    same("logging_steps", convert=_logging_steps),
    same("load_best_model_at_end", "checkpoints.load_best_model_at_end"),
    same("save_total_limit", "checkpoints.save_total_limit"),
    same("save_steps", convert=conversions.saving_steps),
    same("run_name", NAME),
    always("save_strategy", ("steps", "no"), advice.SAVING),
    always("logging_strategy", ("steps",), advice.SAVING),
    always("do_train", (True,), advice.ANSWERS),
)
"""When to validate, log and save."""
OTHERS: tuple[Row, ...] = (
    *absent(
        advice.OPTIMISER_DETAILS,
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "optim_args",
        "optim_target_modules",
    ),
    *absent(advice.SCHEDULE_DETAILS, "lr_scheduler_kwargs"),
    *absent(advice.FOLDERS, "output_dir", "overwrite_output_dir", "logging_dir"),
    *absent(
        advice.TRACKING,
        "report_to",
        "project",
        "trackio_space_id",
        "trackio_bucket_id",
        "trackio_static_space_id",
        "log_level",
        "log_level_replica",
        "log_on_each_node",
        "logging_first_step",
        "disable_tqdm",
        "include_num_input_tokens_seen",
        "include_tokens_per_second",
    ),
    *absent(
        advice.HUB,
        "push_to_hub",
        "hub_model_id",
        "hub_strategy",
        "hub_private_repo",
        "hub_always_push",
        "hub_revision",
    ),
    *absent(advice.TOKENS, "hub_token"),
    *absent(
        advice.RESUME,
        "resume_from_checkpoint",
        "ignore_data_skip",
        "restore_callback_states_from_checkpoint",
    ),
    *absent(
        advice.CLUSTER,
        "deepspeed",
        "fsdp",
        "fsdp_config",
        "ddp_backend",
        "ddp_timeout",
        "ddp_find_unused_parameters",
        "ddp_bucket_cap_mb",
        "ddp_broadcast_buffers",
        "ddp_static_graph",
        "parallelism_config",
        "accelerator_config",
        "local_rank",
        "average_tokens_across_devices",
        "use_cpu",
        "no_cuda",
    ),
    *absent(
        advice.KERNELS,
        "torch_compile",
        "torch_compile_backend",
        "torch_compile_mode",
        "use_liger_kernel",
        "liger_kernel_config",
        "torch_empty_cache_steps",
        "use_cache",
        "activation_checkpointing_kwargs",
        "gradient_checkpointing_kwargs",
    ),
    *absent(
        advice.LOADING,
        "dataloader_drop_last",
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "dataloader_multiprocessing_context",
        "dataloader_in_order",
        "remove_unused_columns",
        "label_names",
        "length_column_name",
        "dataset_num_proc",
    ),
    *absent(
        advice.EVALUATION,
        "prediction_loss_only",
        "eval_do_concat_batches",
        "eval_use_gather_object",
        "eval_accumulation_steps",
        "include_for_metrics",
        "batch_eval_metrics",
        "eval_delay",
        "eval_on_start",
        "bf16_full_eval",
        "fp16_full_eval",
        "do_eval",
        "do_predict",
    ),
    *absent(advice.BEST, "metric_for_best_model", "greater_is_better"),
    *absent(
        advice.SAVING,
        "save_only_model",
        "save_on_each_node",
        "save_safetensors",
        "enable_jit_checkpoint",
    ),
    *absent(
        advice.DEBUGGING,
        "debug",
        "skip_memory_metrics",
        "full_determinism",
        "logging_nan_inf_filter",
    ),
    *absent(advice.BATCHES, "auto_find_batch_size"),
    *absent(advice.DATA_SEED, "data_seed"),
)
