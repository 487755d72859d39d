"""Activation memory of encoder-decoders: the layers of both halves, and attention between them."""

from dataclasses import replace

from studio.services.estimates.activation_memory import BatchShape, TrainingStep, t5_norm
from studio.services.precision.number_formats import DTYPE_BYTES

LOGIT_BYTES = 12
"""Bytes per logit where the loss is computed and where its gradient is: three values in float32,
or two in 16 bits and two in float32."""


def writer(step: TrainingStep) -> TrainingStep:
    """Return the step as the decoder sees it: its own layers, and answers instead of prompts."""
    load = replace(step.load, length=step.load.answer_tokens)
    shape = step.facts.decoder or step.shape
    return replace(step, shape=shape, load=load, is_writer=True)


def all_layers(step: TrainingStep) -> int:
    """Return the bytes that all layers keep for the backward pass."""
    ours, theirs = step, writer(step)
    return (
        ours.shape.layers * ours.layer
        + theirs.shape.layers * (theirs.layer + _cross_attention(ours, theirs))
        + _between(ours, theirs)
    )


def checkpointed_bytes(step: TrainingStep) -> int:
    """Return the bytes of the inputs of all layers, masks and positions among them."""
    ours, theirs = step, writer(step)
    inputs = ours.checkpointed_bytes + theirs.checkpointed_bytes
    read, written = ours.load.length, theirs.load.length
    if ours.layer_spec.norm == "t5":
        scores = ours.shape.heads * read * read + theirs.shape.heads * written * written
    else:
        scores = (read * read + written * read) * ours.load.is_padded
    masks = ours.load.batch * scores * DTYPE_BYTES[ours.weight_dtype]
    return inputs + masks + _between(ours, theirs)


def bytes_at_last_decoder_layer(step: TrainingStep) -> int:
    """Return what is kept while the layer that writes last is recomputed, before all others."""
    theirs = writer(step)
    return checkpointed_bytes(step) + theirs.layer + _cross_attention(step, theirs)


def bytes_at_last_encoder_layer(step: TrainingStep) -> int:
    """Return what is kept while the layer that reads last is recomputed."""
    return step.checkpointed_bytes + step.layer


def logits_bytes(load: BatchShape, vocabulary: int) -> int:
    """Return the bytes of logits and loss of a batch."""
    return LOGIT_BYTES * load.batch * load.answer_tokens * vocabulary


def _between(ours: TrainingStep, theirs: TrainingStep) -> int:
    """Return what is kept besides the layers: embeddings, and what both halves end with."""
    return _edges(ours) + _edges(theirs)


def _edges(step: TrainingStep) -> int:
    """Return what is kept before the first layer, if anything is trained there, and at the end."""
    hidden = step.shape.hidden_size
    # Checkpointing needs gradients of what the first layer reads, even if an adapter is trained.
    is_kept = not step.is_adapter or step.is_checkpointed
    values = step.hidden_state_bytes * hidden * is_kept
    if step.layer_spec.norm == "layer":
        values *= 2
    dropped = step.compute_bytes * hidden if step.layer_spec.dropout_everywhere else 0
    return step.load.tokens * (values + dropped) + step.final_norm_bytes


def _cross_attention(ours: TrainingStep, theirs: TrainingStep) -> int:
    """Return the bytes that a decoder layer keeps to read what the encoder gives."""
    read, written = ours.load, theirs.load
    width, wide = theirs.compute_bytes, DTYPE_BYTES["float32"]
    shape, is_fused = theirs.shape, not theirs.is_eager and not theirs.stores_attention_scores
    heads = width if is_fused else wide
    casts = 2 * width * shape.hidden_size if theirs.casts_inputs else 0
    per_token = 2 * heads * shape.key_width + casts
    is_copied = is_fused and theirs.is_adapter and theirs.casts_inputs
    own = (
        _norm(theirs)
        + width * shape.hidden_size * (1 + bool(shape.residual_dropout))
        + heads * shape.query_width
        + width * shape.query_width * (1 + is_copied)
    )
    scores = 12 if theirs.has_attention_dropout else 4
    pairs = written.batch * written.length * read.length
    attended = width * pairs if is_fused else scores * shape.heads * pairs
    return read.tokens * per_token + written.tokens * own + attended


def _norm(step: TrainingStep) -> int:
    """Return the bytes per token that one norm keeps."""
    if step.layer_spec.norm == "t5":
        return t5_norm(step)
    return step.hidden_state_bytes * step.shape.hidden_size + 2 * step.hidden_state_bytes
