"""What models say of a prompt that write nothing: scores, steps that are right, tags of words."""

import re
from itertools import pairwise

import torch
from transformers import PreTrainedModel

from studio.protocols.inference_service import GenerationEnd, GenerationRequest, WordTag
from studio.training.evaluation.sample_answers import record_compute_formats


def give_scores(request: GenerationRequest, model: PreTrainedModel) -> GenerationEnd:
    """Return what a model says of the prompt that it reads, by name."""
    inputs = torch.tensor([request.ids], device=model.device)
    with torch.inference_mode(), record_compute_formats(model) as formats:
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits[0]
    given: list[int] = []
    if model.config.problem_type == "single_label_classification":
        logits = logits.softmax(dim=-1)
        given = [int(logits.argmax())]
    elif model.config.problem_type == "multi_label_classification":
        logits = logits.sigmoid()
        given = (logits >= model.config.label_threshold).nonzero().flatten().tolist()
    elif hasattr(model.config, "target_means"):
        means, deviations = model.config.target_means, model.config.target_deviations
        logits = logits.double() * logits.new_tensor(deviations) + logits.new_tensor(means)
    names = model.config.id2label
    return GenerationEnd(
        reason="stop",
        tokens=len(request.ids),
        computed_in=" and ".join(sorted(formats)),
        scores={names[number]: value for number, value in enumerate(logits.tolist())},
        labels=[names[number] for number in given],
    )


def check_steps(request: GenerationRequest, model: PreTrainedModel) -> GenerationEnd:
    """Return how likely each step of the solution is right that the prompt holds."""
    inputs = torch.tensor([request.ids], device=model.device)
    with torch.inference_mode(), record_compute_formats(model) as formats:
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits[0]
    likely = logits[request.places].float().softmax(dim=-1)[:, model.config.label2id["right"]]
    return GenerationEnd(
        reason="stop",
        tokens=len(request.ids),
        computed_in=" and ".join(sorted(formats)),
        steps=likely.tolist(),
    )


def tag_words(request: GenerationRequest, model: PreTrainedModel) -> GenerationEnd:
    """Return the tag of each word of the text in the prompt, with its probability."""
    inputs = torch.tensor([request.ids], device=model.device)
    with torch.inference_mode(), record_compute_formats(model) as formats:
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits[0]
    likely, given = logits[request.places].float().softmax(dim=-1).max(dim=-1)
    tags = [model.config.id2label[number] for number in given.tolist()]
    for word, (before, place) in enumerate(pairwise(request.places), 1):
        if before == place:  # One token holds both words.
            tags[word] = re.sub("^B-", "I-", tags[word])
    return GenerationEnd(
        reason="stop",
        tokens=len(request.ids),
        computed_in=" and ".join(sorted(formats)),
        tags=[
            WordTag(tag=tag, likely=share) for tag, share in zip(tags, likely.tolist(), strict=True)
        ],
    )


def read(request: GenerationRequest, model: PreTrainedModel) -> GenerationEnd:
    """Return what a model says of the prompt that it reads."""
    if request.gives_tags:
        return tag_words(request, model)
    return check_steps(request, model) if request.places else give_scores(request, model)
