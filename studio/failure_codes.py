"""Every way a run can fail: one row a code, what it means, and what a person can do about it.

Whoever raises, classifies, words or mends a failure uses these codes and no others; a test holds
them to it. `docs/failures.md` and the page `/failures` are written from this table.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FailureCode:
    """One class of failures."""

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
        "Numbers broke",
        "The loss, or the weights that were learnt, are NaN or infinite.",
        "Lower the learning rate, or choose a format with more room.",
    ),
    FailureCode(
        "steps_left_out",
        "Too few steps learned",
        "In most steps the loss or a gradient was NaN or infinite, so they updated no weight.",
        "Lower the learning rate, look for broken rows, or choose a format with more range.",
    ),
    FailureCode(
        "loss_scale_collapsed",
        "Too small for float16",
        "The scale that keeps small gradients alive in float16 has fallen below one.",
        "Choose bfloat16 or float32.",
    ),
    FailureCode(
        "zero_loss",
        "A loss of nothing",
        "The loss has been exactly zero for many steps, though not every token was right.",
        "See whether the answers are cut off, or raise the longest example.",
    ),
    FailureCode(
        "updates_lost",
        "Updates lost to rounding",
        "Most updates are too small to change 16-bit weights at all: nothing would be learnt.",
        "Keep the weights in float32, as the mixed modes do, or raise the learning rate.",
    ),
    FailureCode(
        "dtype_mismatch",
        "Two number formats met",
        "A layer was given numbers of another format than its own weights have.",
        "Choose another precision; float32 fits every model.",
    ),
    FailureCode(
        "precision_refused",
        "Precision refused",
        "The run would have trained in another precision than the one asked for.",
        "Choose another precision. The studio never replaces one by another silently.",
    ),
    FailureCode(
        "conflict",
        "Settings that exclude each other",
        "Two settings of the recipe cannot both be had.",
        "Change the one that the message names.",
    ),
    FailureCode(
        "bad_row",
        "A row cannot be read",
        "A row of the data is no conversation, or the model's chat template refuses it.",
        "Mend the row that the message names, and import the data set again.",
    ),
    FailureCode(
        "all_labels_masked",
        "Nothing to learn",
        "No row has an answer of the assistant, so there is nothing the loss could count.",
        "See whether the columns were mapped rightly: answers must be assistant turns.",
    ),
    FailureCode(
        "sequence_too_long",
        "Answers cut off",
        "Every row that has an answer is cut off before it, by the longest example allowed.",
        "Raise the longest example, or shorten the prompts.",
    ),
    FailureCode(
        "too_few_rows",
        "Too few rows",
        "Training and validation need at least one row each.",
        "Add rows, or a validation part.",
    ),
    FailureCode(
        "chat_template_refused",
        "Broken chat template",
        "The model's chat template fails even on one question with one answer.",
        "Choose another chat template, or another model.",
    ),
    FailureCode(
        "no_chat_template",
        "No chat template",
        "The model was never taught to hold a conversation, and no way to write one was chosen.",
        "Set the chat template to chatml or plain.",
    ),
    FailureCode(
        "gated_model",
        "Gated model",
        "The model's owner asks for consent before it may be fetched.",
        "Accept its licence on the hub, and set HF_TOKEN where the studio runs.",
    ),
    FailureCode(
        "model_not_found",
        "Model not found",
        "There is no such folder or hub model, or files of it are missing.",
        "Look for a spelling mistake, or choose another model.",
    ),
    FailureCode(
        "no_connection",
        "Hub not reached",
        "The model is not on this machine, and the hub could not be reached.",
        "Look to the network, or choose a model that is here.",
    ),
    FailureCode(
        "no_safetensors",
        "No safetensors",
        "The model's weights are in a format that can hide code.",
        "Choose a version of the model with safetensors.",
    ),
    FailureCode(
        "absurd_config",
        "A config that cannot be",
        "The model's config.json holds numbers that no model has.",
        "Fetch the model again, or choose another.",
    ),
    FailureCode(
        "corrupt_weights",
        "Damaged weights",
        "A file of the model's weights cannot be read.",
        "Delete the model and fetch it again.",
    ),
    FailureCode(
        "incompatible_checkpoint",
        "Checkpoint does not fit",
        "Saved weights or states have other shapes or names than the model has.",
        "Run again from the start; for a base model, fetch it again with its own config.json.",
    ),
    FailureCode(
        "needs_remote_code",
        "Needs code of its own",
        "The model only loads with Python code that comes with it and is not allowed to run.",
        "Allow its code on the model's page, or choose one of a family that transformers knows.",
    ),
    FailureCode(
        "unsupported_architecture",
        "Unknown kind of model",
        "The installed transformers does not know this kind of model, or it writes no text.",
        "Choose a causal language model, or update the studio.",
    ),
    FailureCode(
        "slow_tokenizer",
        "Tokenizer cannot be used",
        "The tokenizer cannot tell where in a text its tokens stand, so answers are not found.",
        "Use a version of the model that comes with tokenizer.json.",
    ),
    FailureCode(
        "no_end_token",
        "No end token",
        "The tokenizer has no end-of-text token, so no answer could ever end.",
        "Set eos_token in the model's tokenizer_config.json.",
    ),
    FailureCode(
        "no_adapter_layers",
        "No layers for an adapter",
        "The model has none of the layers that an adapter is attached to.",
        "Choose full fine-tuning.",
    ),
    FailureCode(
        "orphans",
        "Weights left out",
        "Some weights that should learn were given to no optimizer: a bug in the studio.",
        "Please report it with the text that the panel copies.",
    ),
    FailureCode(
        "disk_full",
        "Disk full",
        "There was no room left where the studio keeps its data. Older checkpoints are whole.",
        "Delete old runs or models, then try again.",
    ),
    FailureCode(
        "dependency_missing",
        "A package is missing",
        "A Python package that the run needs is not installed, or does not load.",
        "Install the training packages; studio doctor tells what is missing.",
    ),
    FailureCode(
        "gpu_failed",
        "The GPU failed",
        "The GPU or its driver reported an error other than want of memory.",
        "Run again; if it fails again, look to the driver.",
    ),
    FailureCode(
        "killed",
        "Killed from outside",
        "Something ended the training process by a signal: a person, the system, a scheduler.",
        "Run again. If nobody did it, see whether the machine ran out of memory.",
    ),
    FailureCode(
        "hang",
        "It said nothing for too long",
        "The run told neither a number nor a line for longer than STUDIO_HANG_SECONDS.",
        "The end of its log shows where each thread stood. Try again from its checkpoint.",
    ),
    FailureCode(
        "lost_worker",
        "Nobody was watching",
        "The machine was started anew, or the process ended after the worker that watched it.",
        "Try again: it goes on from its newest checkpoint.",
    ),
    FailureCode(
        "files_lost",
        "Files deleted",
        "The folder of the run, or the file of its events, was deleted while it ran.",
        "Start it again. Delete runs on their page, and leave the files of those that run alone.",
    ),
    FailureCode(
        "not_followed",
        "Not followed",
        "The worker met the same error each time it looked at the run, and ended it.",
        "Look at the files in the run's folder and at the worker's log, then start it again.",
    ),
    FailureCode(
        "crashed",
        "It crashed",
        "An error the studio has no name for, or a crash in compiled code.",
        "Read the cause and the last lines of the log; please report it if they do not help.",
    ),
    FailureCode(
        "invalid",
        "Not accepted at the start",
        "What the recipe names was there when the run was queued, and was not when it started.",
        "Choose what is there, and run again.",
    ),
    FailureCode(
        "not_found",
        "Gone before the start",
        "Something the run needs was deleted while it waited.",
        "Choose something else, and run again.",
    ),
    FailureCode(
        "unavailable",
        "Could not be started",
        "This machine could not start the training process.",
        "The message has the system's reason. Mend that, and run again.",
    ),
    FailureCode(
        "too_large",
        "Too large",
        "Something the run needs is larger than the studio takes.",
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
"""What runs of earlier versions have in their rows."""


def failure_code(code: str) -> FailureCode:
    """Return the row of a code, also of one that has another name by now."""
    return FAILURE_CODES.get(_RENAMED_CODES.get(code, code), FAILURE_CODES["crashed"])
