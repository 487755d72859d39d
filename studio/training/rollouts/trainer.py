"""A trainer that learns from the scores of answers which its model writes."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback
from trl import SFTConfig

from studio.errors import TrainingError
from studio.graders.grading import Grading
from studio.graders.group_scores import MAX_ERRORS, refusal, summarise
from studio.protocols.grader_judges import AskTogether
from studio.protocols.rollouts import Stage
from studio.training.checkpoints import trainer_state
from studio.training.data import tokenisation
from studio.training.data.labels import IGNORE_INDEX
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models.eval_context import evaluation_mode, keep_forward_wrappers
from studio.training.monitoring.divergence_guard import Alarm
from studio.training.next_token import NextTokenTrainer
from studio.training.precision import matmul_precision
from studio.training.rollouts.batches import (
    AnswerWeights,
    PolicyLoss,
    PolicyTokens,
    place_logps,
)
from studio.training.rollouts.generation import SamplingSettings, WrittenAnswer, write_answers
from studio.training.rollouts.grading import GradedAnswer, GradedGroup, grade_answers
from studio.training.rollouts.prompts import COLUMNS, PromptCollator, list_prompts
from studio.training.rollouts.records import RolloutLog
from studio.training.rollouts.sums import RolloutAccumulator
from studio.training.rollouts.watch import RolloutWatch

Batch = dict[str, Any]

TRIAL_PROMPTS = 8
"""Prompts that the untrained model answers, to see whether there is anything to learn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """How answers are written and compared."""

    sampling: SamplingSettings
    answers_per_prompt: int
    steps_per_generation: int
    """Steps whose answers are written at once."""
    validation_prompts: int
    validation_answers: int
    """Answers to each validation prompt."""
    reference_weight: float
    """How strongly the distance from the model before training counts; 0 needs no reference."""
    grading: Grading
    held_out_grading: Grading | None
    """Scores validation answers only."""
    ask_together: AskTogether
    """Asks reward models about many answers at once."""


class RolloutTrainer(NextTokenTrainer):
    """Writes answers, has them graded, and makes those likelier that scored above others.

    A batch of the data holds prompts. It becomes a batch of answers, which the loss is computed
    from, in `get_batch_samples`: there the answers of whole steps are written at once.
    """

    head_outputs = ("log_probs", "entropy")
    collator_type = PromptCollator
    is_loss_informative = False
    _losses: RolloutAccumulator

    def __init__(
        self,
        job: TrainingJob,
        args: SFTConfig,
        callbacks: list[TrainerCallback],
        settings: RolloutSettings,
    ) -> None:
        self.settings, self.head_temperature = settings, settings.sampling.temperature
        # Before anything is trained, and before it gets an adapter.
        copies = settings.reference_weight and job.adapter is None
        self._reference = deepcopy(job.model).requires_grad_(False) if copies else None  # noqa: FBT003 -- upstream's signature
        super().__init__(job, args, callbacks)
        if self._reference is not None:
            self.prepare_head(self._reference)
        self._job = job
        self._prompts = [*list_prompts(job.train), *list_prompts(job.validation)]
        train_count = len(job.train.rows)
        validation = self.eval_dataset[: settings.validation_prompts]
        self.eval_dataset = [row | {"index": row["index"] + train_count} for row in validation]
        self.buffer, self.watch = RolloutBuffer(), RolloutWatch()
        self.accumulators = (self._losses, self.buffer, self.watch)
        self._ahead: deque[list[Batch]] = deque()
        self._log = RolloutLog(job.run_dir.rollouts)

    # What a method decides.

    def compute_advantages(self, rewards: Tensor, distances: Tensor | None) -> Tensor:
        """Return how much better each answer is than others: shape (prompts, answers per prompt).

        `rewards` has the same shape, NaN for an answer without a score; so have `distances`, the
        log-probability of each answer minus that by the reference, None without a reference.
        """
        raise NotImplementedError

    def compute_policy_loss(self, tokens: PolicyTokens) -> PolicyLoss:
        """Return the loss of a batch of answers."""
        raise NotImplementedError

    def compute_weights(self, counts: AnswerWeights) -> Tensor:
        """Return how much a token of each answer of a step counts: shape (answers,)."""
        raise NotImplementedError

    def learns_from(self, answer: WrittenAnswer) -> bool:
        """Return whether an answer takes part in the loss."""
        raise NotImplementedError

    # Writing and grading.

    def train(self, *args: object, **kwargs: object) -> object:
        """Train; what is kept of the answers goes on where the checkpoint was saved."""
        start = kwargs.get("resume_from_checkpoint")
        self._log.cut(-1 if start is None else trainer_state.read_step(Path(str(start))))
        with self.settings.grading, self.settings.held_out_grading or nullcontext():
            return super().train(*args, **kwargs)

    def score_reference(self, enter: Callable[[str], None]) -> None:
        """Let the untrained model answer a few prompts, and see whether it can learn from scores.

        Raises:
            TrainingError: all answers score alike, or most of them cannot be scored.

        """
        if self._job.spec.resume:
            return
        enter("trying the grader")
        rows = list(range(min(TRIAL_PROMPTS, len(self._job.train.rows))))
        with matmul_precision.apply_precision(self.mode, self.args.device):
            groups = self._answer(rows, self.settings.answers_per_prompt, self._seed("trial", 0))
        # Until the run trains, so that people can read why it was refused.
        self._log.cut(-1)
        self._log.append(group.to_record(0, "training") for group in groups)
        rewards = [[answer.reward for answer in group.answers] for group in groups]
        summary = summarise(rewards)
        if reason := refusal(summary):
            problem = next((group.first_message for group in groups if group.first_message), "")
            message = f"{reason} {problem}".strip()
            if summary.share_of_errors > MAX_ERRORS:
                raise TrainingError("grader_failed", message)
            raise TrainingError("no_spread", message, solved=int(summary.highest == 1))

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], None]:
        """Return the batches of answers that a step learns from."""
        del device
        prompts = self._ahead.popleft() if self._ahead else _take(epoch_iterator, num_batches)
        if prompts and not self.buffer.steps:
            size = self.args.gradient_accumulation_steps
            for _ in range(self.settings.steps_per_generation - 1):
                if batches := _take(epoch_iterator, size):
                    self._ahead.append(batches)
            self.buffer.steps = self._roll_out([prompts, *self._ahead])
        # A run that resumed between two rounds of writing reads its prompts again, in vain.
        return (self.buffer.steps.pop(0) if prompts else []), None

    def _roll_out(
        self, steps: Sequence[Sequence[Batch]], *, is_kept: bool = True
    ) -> list[list[Batch]]:
        """Write and grade the answers of several steps, in the batches of each step."""
        rows = [row for batches in steps for batch in batches for row in batch["index"].tolist()]
        seed = self._seed("training", self.state.global_step)
        groups = self._answer(rows, self.settings.answers_per_prompt, seed)
        if is_kept:
            self._keep("training", groups)
        rest = iter(groups)
        return [
            self._make_step([list(islice(rest, len(batch["index"]))) for batch in batches])
            for batches in steps
        ]

    def _answer(self, rows: Sequence[int], count: int, seed: int) -> list[GradedGroup]:
        """Write and grade a number of answers to each prompt."""
        prompts = [self._prompts[row] for row in rows]
        repeated = [prompt.ids for prompt in prompts for _ in range(count)]
        with keep_forward_wrappers(self.model), self._same_numerics():
            model: PreTrainedModel = self.accelerator.unwrap_model(
                self.model, keep_fp32_wrapper=False
            )
            written = write_answers(model, repeated, self.settings.sampling, seed)
        decode = self._job.tokenizer.decode
        texts = [decode(answer.ids, skip_special_tokens=True).strip() for answer in written]
        tasks = [prompt.task for prompt in prompts for _ in range(count)]
        pairs, settings = list(zip(texts, tasks, strict=True)), self.settings
        grades = grade_answers(settings.grading, pairs, settings.ask_together)
        graded = map(GradedAnswer, written, texts, grades)
        return [GradedGroup(prompt, list(islice(graded, count))) for prompt in prompts]

    def _keep(self, stage: Stage, groups: Sequence[GradedGroup]) -> None:
        """Count answers, and write them where people can read them."""
        self._losses.add_groups(groups)
        step = self.state.global_step + (stage == "training")
        self._log.append(group.to_record(step, stage) for group in groups)

    def _make_step(self, batches: Sequence[Sequence[GradedGroup]]) -> list[Batch]:
        """Return the batches of one step, with everything that the loss needs."""
        made = [self._collate(groups) for groups in batches]
        sizes = [len(batch["input_ids"]) for batch in made]
        answers = [answer for part in batches for group in part for answer in group.answers]
        advantages = self._advantages(answers, made)
        weights = self._weights(answers, sizes)
        parts = zip(made, torch.split(advantages, sizes), torch.split(weights, sizes), strict=True)
        for batch, advantage, weight in parts:
            batch["advantages"] = advantage.to(self.args.device)
            batch["weights"] = weight.to(self.args.device)
        return made

    def _advantages(self, answers: Sequence[GradedAnswer], batches: Sequence[Batch]) -> Tensor:
        """Return how much better each answer of a step is than the others: shape (answers,)."""
        scores = [math.nan if answer.reward is None else answer.reward for answer in answers]
        rewards = torch.tensor(scores).view(-1, self.settings.answers_per_prompt)
        if not self.settings.reference_weight:
            return self.compute_advantages(rewards, None).flatten()
        distances = torch.cat(
            [(one["sampled_logps"] - one["reference_logps"]).sum(dim=1).cpu() for one in batches]
        )
        return self.compute_advantages(rewards, distances.view_as(rewards)).flatten()

    def _weights(self, answers: Sequence[GradedAnswer], sizes: list[int]) -> Tensor:
        """Return how much a token of each answer of a step counts: shape (answers,).

        `sizes` are the numbers of answers in each batch.
        """
        learned = [answer.length * self.learns_from(answer.written) for answer in answers]
        tokens = torch.tensor(learned, dtype=torch.float)
        sums = [part.sum().expand(len(part)) for part in torch.split(tokens, sizes)]
        counts = AnswerWeights(
            tokens=tokens,
            tokens_in_batch=torch.cat(sums),
            batches=len(sizes),
            max_tokens=self.settings.sampling.max_new_tokens,
        )
        return torch.where(tokens > 0, self.compute_weights(counts), 0.0)

    def _collate(self, groups: Sequence[GradedGroup]) -> Batch:
        """Return prompts with their answers as a batch on the device."""
        pairs = [(group.prompt.ids, answer.written) for group in groups for answer in group.answers]
        rows = [
            {
                "input_ids": torch.tensor([*ids, *written.ids]),
                "labels": torch.tensor([IGNORE_INDEX] * len(ids) + written.ids),
            }
            for ids, written in pairs
        ]
        batch: Batch = tokenisation.Collator(self.pad_token_id)(rows)
        starts = [len(ids) for ids, _ in pairs]
        logps = [written.logps for _, written in pairs]
        batch["sampled_logps"] = place_logps(logps, starts, batch["input_ids"].shape[1])
        batch = self._prepare_inputs(batch)
        if self.settings.steps_per_generation > 1:
            batch["old_logps"] = self._score(self.model, batch)
        if self.settings.reference_weight:
            with self._reference_model() as reference:
                batch["reference_logps"] = self._score(reference, batch)
        return batch

    def _score(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the log-probability of each token of the answers."""
        with evaluation_mode(model), self._same_numerics():
            scores: Tensor = model(**_inputs(batch), use_cache=False, fused_lm_head=True).log_probs
        return scores

    @contextmanager
    def _reference_model(self) -> Iterator[nn.Module]:
        """Give the model before training: without its adapter, or a copy of it."""
        if self._reference is not None:
            yield self._reference
        else:
            with self.model.disable_adapter():
                yield self.model

    def _same_numerics(self) -> AbstractContextManager[object]:
        """Return the context in which the model computes as in a training step."""
        context: AbstractContextManager[object] = self.compute_loss_context_manager()
        return context

    def _seed(self, stage: str, step: int) -> int:
        """Return the seed of a round of writing, so that a resumed run writes the same answers."""
        text = f"{self.args.seed}/{stage}/{step}"
        return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")

    # Learning.

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,  # noqa: ARG002 -- the same
    ) -> Tensor:
        """Return this batch's part of the loss of a step."""
        if "advantages" not in inputs:  # Timed before training.
            [[inputs]] = self._roll_out([[inputs]], is_kept=False)
        outputs = model(**_inputs(inputs), use_cache=False, fused_lm_head=True)
        logps, mask = outputs.log_probs, outputs.label_mask
        tokens = PolicyTokens(
            logps=logps,
            old_logps=inputs.get("old_logps", logps.detach()),
            reference_logps=inputs.get("reference_logps"),
            mask=mask,
            advantages=inputs["advantages"],
            weights=inputs["weights"],
        )
        result = self.compute_policy_loss(tokens)
        self._losses.add_tokens(
            result,
            mask=mask,
            entropy=outputs.entropy,
            gap=(tokens.old_logps - inputs["sampled_logps"]).abs(),
            tokens=inputs["attention_mask"].sum(),
        )
        return self.add_aux_loss(result.loss, outputs.aux_loss)

    def prediction_step(
        self,
        _model: nn.Module,
        inputs: Batch,
        _prediction_loss_only: bool,  # noqa: FBT001 -- upstream's signature
        ignore_keys: object = None,  # noqa: ARG002 -- the same
    ) -> tuple[Tensor, None, None]:
        """Answer validation prompts, and count their scores; the loss of a step has no meaning."""
        rows = inputs["index"].tolist()
        seed = self._seed("validation", rows[0])
        groups = self._answer(rows, self.settings.validation_answers, seed)
        self._keep("validation", groups)
        if (held_out := self.settings.held_out_grading) is not None:
            self._losses.add_held_out(groups, held_out, self.settings.ask_together)
        return torch.zeros((), device=self.args.device), None, None

    def new_accumulator(self) -> RolloutAccumulator:
        return RolloutAccumulator(self.args.device)

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("reward", "answer_tokens", "held_out_score")
        metrics = {f"eval_{name}": sums[name] for name in names if name in sums}
        if "eval_reward" not in metrics:
            raise TrainingError(
                "grader_failed",
                "None of the validation answers could be scored.",
                hint="Try the grader on a few rows, and look at the errors in the run's answers.",
            )
        self.watch.add_validation(metrics)
        return metrics

    def own_alarms(self, metrics: Mapping[str, float]) -> Iterator[Alarm]:
        yield from self.watch.check(metrics)

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        batch: Batch = shape.tensors(device)
        size = batch["input_ids"].shape
        scores = torch.zeros(size[0], size[1] - 1, device=device)
        batch |= {"sampled_logps": scores}
        batch |= {name: torch.zeros(size[0], device=device) for name in ("advantages", "weights")}
        if self.settings.reference_weight:
            batch["reference_logps"] = scores
        if self.settings.steps_per_generation > 1:
            batch["old_logps"] = scores
        return batch

    def _set_signature_columns_if_needed(self) -> None:
        """Keep all columns: upstream removes what the model does not read."""
        self._signature_columns = list(COLUMNS)


class RolloutBuffer:
    """The answers of steps that are still to come. Checkpoints keep them."""

    SAVED_AS: ClassVar[str] = "Rollouts"
    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = ("steps",)

    def __init__(self) -> None:
        self.steps: list[list[Batch]] = []


_MODEL_INPUTS = ("input_ids", "attention_mask", "labels")


def _inputs(batch: Batch) -> Batch:
    return {name: batch[name] for name in _MODEL_INPUTS}


def _take(batches: Iterator[Batch], count: int) -> list[Batch]:
    """Return the next batches, fewer at the end."""
    return list(islice(batches, count))
