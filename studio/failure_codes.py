"""Every way a run can fail: one row per code, with its meaning and its remedy.

All code that raises, classifies, explains or fixes failures uses these codes and no others; a test
checks this. `docs/failures.md` and the page `/failures` are generated from this table.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FailureCode:
    """A kind of failure."""

    code: str
    title: str
    meaning: str
    remedy: str


_ROWS = (
    FailureCode(
        "out_of_memory",
        "Out of memory",
        "The GPU or this machine had less memory than the run needed. The message says which.",
        "Lower the batch size and raise gradient accumulation: the result stays the same.",
    ),
    FailureCode(
        "non_finite",
        "Loss became NaN",
        "The loss or the trained weights are NaN or infinite.",
        "Lower the learning rate, or choose a number format with more range.",
    ),
    FailureCode(
        "steps_left_out",
        "Too many steps skipped",
        "In most steps the loss or a gradient was NaN or infinite, so no weight was updated.",
        "Lower the learning rate, check for broken rows, or choose a format with more range.",
    ),
    FailureCode(
        "loss_scale_collapsed",
        "Gradients too small for float16",
        "The scale that keeps small gradients alive in float16 has fallen below 1.",
        "Choose bfloat16 or float32.",
    ),
    FailureCode(
        "zero_loss",
        "Loss is exactly zero",
        "The loss has been exactly zero for many steps, although some predictions were wrong.",
        "Check whether answers are truncated, or raise the max sequence length.",
    ),
    FailureCode(
        "no_spread",
        "Answers score alike",
        "The model's answers to a prompt all got the same reward, so there was nothing to learn.",
        "Use easier or harder prompts, or a grader with finer scores. Try it on a few rows.",
    ),
    FailureCode(
        "grader_failed",
        "Answers without a score",
        "The grader could not score most of the answers, so nothing was learned from them.",
        "Try the grader on a few rows, and look at the errors among the run's answers.",
    ),
    FailureCode(
        "updates_lost",
        "Updates lost to rounding",
        "Most updates are too small to change 16-bit weights, so the model would learn nothing.",
        "Keep the weights in float32, as the mixed modes do, or raise the learning rate.",
    ),
    FailureCode(
        "dtype_mismatch",
        "Number formats do not match",
        "A layer received numbers in a different format from its own weights.",
        "Choose another precision; float32 works with every model.",
    ),
    FailureCode(
        "precision_refused",
        "Precision not applied",
        "The run would have trained in a different precision from the one you chose.",
        "Choose another precision. The studio never replaces one silently.",
    ),
    FailureCode(
        "conflict",
        "Conflicting settings",
        "Two settings of the recipe cannot be combined.",
        "Change the setting that the message names.",
    ),
    FailureCode(
        "bad_row",
        "Row cannot be read",
        "A row of the data is not a conversation, or the model's chat template rejects it.",
        "Fix the row that the message names, then import the dataset again.",
    ),
    FailureCode(
        "all_labels_masked",
        "Nothing to train on",
        "No row has an assistant answer, so there are no tokens to compute the loss on.",
        "Check the column mapping: answers must be assistant turns.",
    ),
    FailureCode(
        "sequence_too_long",
        "Answers cut off",
        "Every row with an answer is truncated before the answer begins.",
        "Raise the max sequence length, or shorten the prompts.",
    ),
    FailureCode(
        "too_few_rows",
        "Too few rows",
        "Training and validation need at least one row each.",
        "Add rows, or a validation split.",
    ),
    FailureCode(
        "chat_template_refused",
        "Broken chat template",
        "The model's chat template fails even on a single question and answer.",
        "Choose another chat template, or another model.",
    ),
    FailureCode(
        "no_chat_template",
        "No chat template",
        "The model has no chat template, and the recipe does not choose one.",
        "Set the chat template to chatml or plain.",
    ),
    FailureCode(
        "gated_model",
        "Gated model",
        "The model's owner requires you to accept its terms before you can download it.",
        "Accept its license on the hub, and set HF_TOKEN where the studio runs.",
    ),
    FailureCode(
        "model_not_found",
        "Model not found",
        "The folder or hub model does not exist, or some of its files are missing.",
        "Check the spelling, or choose another model.",
    ),
    FailureCode(
        "no_connection",
        "Hub unreachable",
        "The model is not on this machine, and the Hugging Face hub could not be reached.",
        "Check the network, or choose a model that is already on this machine.",
    ),
    FailureCode(
        "no_safetensors",
        "No safetensors",
        "The model's weights are in a format that can contain code.",
        "Choose a version of the model with safetensors.",
    ),
    FailureCode(
        "absurd_config",
        "Invalid model config",
        "The model's config.json has values that no real model has.",
        "Download the model again, or choose another.",
    ),
    FailureCode(
        "corrupt_weights",
        "Damaged weights",
        "One of the model's weight files cannot be read.",
        "Delete the model and download it again.",
    ),
    FailureCode(
        "incompatible_checkpoint",
        "Checkpoint does not match",
        "Saved weights or states have other shapes or names than the model.",
        "Restart the run; for a base model, download it again with its own config.json.",
    ),
    FailureCode(
        "needs_remote_code",
        "Requires custom code",
        "The model loads only with its own Python code, which is not allowed to run.",
        "Allow the code on the model's page, or choose a model that transformers supports.",
    ),
    FailureCode(
        "unsupported_architecture",
        "Unsupported architecture",
        "The installed transformers does not support this architecture, or it writes no text.",
        "Choose a causal language model, or update the studio.",
    ),
    FailureCode(
        "slow_tokenizer",
        "Unsupported tokenizer",
        "The tokenizer reports no character offsets, so answers cannot be located in the text.",
        "Use a version of the model that includes tokenizer.json.",
    ),
    FailureCode(
        "no_end_token",
        "No end-of-text token",
        "The tokenizer has no end-of-text token, so no answer could ever end.",
        "Set eos_token in the model's tokenizer_config.json.",
    ),
    FailureCode(
        "no_adapter_layers",
        "No layers for an adapter",
        "The model has none of the layers that an adapter attaches to.",
        "Choose full fine-tuning.",
    ),
    FailureCode(
        "orphans",
        "Weights without an optimizer",
        "Some trainable weights were not given to any optimizer: a bug in the studio.",
        "Please report it with the text that the panel copies.",
    ),
    FailureCode(
        "disk_full",
        "Disk full",
        "The disk that holds the studio's data is full. Older checkpoints are intact.",
        "Delete old runs or models, then try again.",
    ),
    FailureCode(
        "dependency_missing",
        "Missing package",
        "A Python package that the run needs is not installed, or cannot be imported.",
        "Install the training packages; studio doctor lists what is missing.",
    ),
    FailureCode(
        "gpu_failed",
        "GPU error",
        "The GPU or its driver reported an error other than out of memory.",
        "The run was tried twice, on two GPUs if possible. Check the driver, then run again.",
    ),
    FailureCode(
        "killed",
        "Killed by a signal",
        "A user, the system or a scheduler ended the training process with a signal.",
        "Run again. If you did not end it, check whether the machine ran out of memory.",
    ),
    FailureCode(
        "hang",
        "Stopped responding",
        "The run reported no metric and no log line for longer than STUDIO_HANG_SECONDS.",
        "The end of its log shows where each thread was. Resume from its checkpoint.",
    ),
    FailureCode(
        "lost_worker",
        "Worker lost",
        "The machine restarted, or the process ended after the worker that monitored it.",
        "Try again: the run resumes from its newest checkpoint.",
    ),
    FailureCode(
        "files_lost",
        "Files deleted",
        "The run's folder or its event file was deleted while it ran.",
        "Restart it. Delete runs on their page, and leave the files of active runs alone.",
    ),
    FailureCode(
        "not_followed",
        "Monitoring failed",
        "The worker hit the same error each time it checked the run, and ended it.",
        "Check the files in the run's folder and the worker's log, then restart the run.",
    ),
    FailureCode(
        "crashed",
        "Crashed",
        "An error that the studio does not recognize, or a crash in compiled code.",
        "Read the cause and the last lines of the log; please report it if they do not help.",
    ),
    FailureCode(
        "invalid",
        "Rejected at the start",
        "Something the recipe names existed when the run was queued, but not when it started.",
        "Choose something that exists, and run again.",
    ),
    FailureCode(
        "not_found",
        "Deleted before the start",
        "Something the run needs was deleted while it waited in the queue.",
        "Choose something else, and run again.",
    ),
    FailureCode(
        "unavailable",
        "Could not be started",
        "This machine could not start the training process.",
        "The message gives the system's reason. Fix that, and run again.",
    ),
    FailureCode(
        "too_large",
        "Too large",
        "Something the run needs exceeds a size limit of the studio.",
        "Choose something smaller.",
    ),
)
FAILURE_CODES = {row.code: row for row in _ROWS}

_RENAMED_CODES = {
    "error": "crashed",
    "out_of_memory_gpu": "out_of_memory",
    "model_missing": "model_not_found",
    "mixed_formats": "dtype_mismatch",
    "fp16_weights": "dtype_mismatch",
    "precision_fallback": "precision_refused",
    "nothing_to_learn": "all_labels_masked",
    "nan_weights": "non_finite",
}
"""Codes that earlier versions stored, mapped to the current ones."""


def failure_code(code: str) -> FailureCode:
    """Return the row of a code, also of a renamed one; `crashed` for an unknown code."""
    return FAILURE_CODES.get(_RENAMED_CODES.get(code, code), FAILURE_CODES["crashed"])
