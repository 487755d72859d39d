"""The metrics of texts that models write."""

from collections.abc import Sequence
from importlib.metadata import version

from studio.evaluation import json_schemas, text_scores
from studio.evaluation.evaluation_metric import EvaluationMetric, signed
from studio.evaluation.rows import AnsweredRow


def _chrf_signature(_rows: Sequence[AnsweredRow]) -> str:
    """Return the signature that sacrebleu writes."""
    return f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{_sacrebleu_version()}"


def _bleu_signature(rows: Sequence[AnsweredRow]) -> str:
    """Return the signature that sacrebleu writes, with all tokenizers that the rows need."""
    names = {text_scores.bleu_tokenizer(row.reference) for row in rows if row.has_reference}
    tokenizers = "+".join(sorted(names)) or "13a"
    return f"nrefs:1|case:mixed|eff:no|tok:{tokenizers}|smooth:exp|version:{_sacrebleu_version()}"


def _sacrebleu_version() -> str:
    return version("sacrebleu") if text_scores.has_sacrebleu() else "none"


_RELAXED = "norm:nfkc|case:no|punct:no|articles:no|space:one"

TEXT_METRICS = (
    EvaluationMetric(
        key="exact",
        title="Exact match",
        unit="share",
        note="Answers that equal the reference, apart from spaces: for labels and short facts.",
        phrase="{value} exact answers",
        is_binary=True,
        row_statistics=text_scores.exact,
        signature=signed("norm:nfc|case:yes|punct:yes|space:one"),
    ),
    EvaluationMetric(
        key="exact_relaxed",
        title="Relaxed match",
        unit="share",
        note="Exact match that ignores case, punctuation, articles and extra spaces: shows whether "
        "only the form is wrong.",
        phrase="{value} answers with the right words",
        is_binary=True,
        row_statistics=text_scores.exact_relaxed,
        signature=signed(_RELAXED),
    ),
    EvaluationMetric(
        key="contains",
        title="Contains the reference",
        unit="share",
        note="Answers in which the words of the reference appear: for models that wrap a right "
        "answer in a sentence.",
        phrase="{value} answers with the reference in them",
        is_binary=True,
        row_statistics=text_scores.contains,
        signature=signed(_RELAXED),
    ),
    EvaluationMetric(
        key="number",
        title="Right number",
        unit="share",
        note="Answers whose last number equals that of the reference, or the number after ####: "
        "for calculations.",
        phrase="{value} right numbers",
        is_binary=True,
        row_statistics=text_scores.number,
        signature=signed("take:last|after:####|strip:,$%|compare:decimal"),
    ),
    EvaluationMetric(
        key="token_f1",
        title="Word F1",
        unit="share",
        note="Words that answer and reference share, in any order: for short answers with several "
        "right wordings.",
        phrase="{value} word F1",
        row_statistics=text_scores.token_f1,
        signature=signed(f"{_RELAXED}|mean:rows"),
    ),
    EvaluationMetric(
        key="rouge_l",
        title="ROUGE-L",
        unit="share",
        note="Longest sequence of words that answer and reference share: for summaries.",
        phrase="{value} ROUGE-L",
        row_statistics=text_scores.rouge_l,
        signature=signed("norm:nfkc|case:no|punct:no|unspaced:char|beta:1|mean:rows"),
    ),
    EvaluationMetric(
        key="chrf",
        title="chrF",
        unit="score",
        note="Runs of characters that answers and references share: for answers of any length and "
        "language.",
        phrase="{value} chrF",
        row_statistics=text_scores.chrf,
        aggregate=text_scores.chrf_score,
        signature=_chrf_signature,
    ),
    EvaluationMetric(
        key="bleu",
        title="BLEU",
        unit="score",
        note="Runs of words that answers and references share: for translations, to compare with "
        "published figures.",
        phrase="{value} BLEU",
        row_statistics=text_scores.bleu,
        aggregate=text_scores.bleu_score,
        signature=_bleu_signature,
    ),
    EvaluationMetric(
        key="json_valid",
        title="Valid JSON",
        unit="share",
        note="Answers that are nothing but a JSON object or array, where the reference is one.",
        phrase="{value} valid JSON",
        is_binary=True,
        row_statistics=text_scores.json_valid,
        signature=signed("json:container|fences:no"),
    ),
    EvaluationMetric(
        key="json_schema",
        title="Fits the JSON schema",
        unit="share",
        note="Answers with the keys and the types that the references have in common, whatever "
        "their values.",
        phrase="{value} answers that fit the JSON schema",
        is_binary=True,
        row_statistics=lambda _row: None,
        prepare=json_schemas.fit_references,
        signature=signed("json:container|fences:no|schema:of references"),
    ),
    EvaluationMetric(
        key="json_equal",
        title="Same JSON values",
        unit="share",
        note="Answers with the same JSON values as the reference, however they are laid out: for "
        "extraction.",
        phrase="{value} answers with the same JSON values",
        is_binary=True,
        row_statistics=text_scores.json_equal,
        signature=signed("json:container|fences:no|keys:any order|numbers:decimal"),
    ),
    EvaluationMetric(
        key="loss",
        title="Loss on references",
        unit="nats",
        better="lower",
        note="How surprising the references are to the model, per token: compares models with the "
        "same tokenizer.",
        phrase="{value} nats/token",
        row_statistics=text_scores.loss,
        signature=signed("over:reference tokens|log:e"),
    ),
    EvaluationMetric(
        key="bits_per_byte",
        title="Bits per byte",
        unit="bits",
        better="lower",
        note="How surprising the references are to the model, per byte: compares models with "
        "different tokenizers.",
        phrase="{value} bits/byte",
        row_statistics=text_scores.bits_per_byte,
        signature=signed("over:reference bytes utf-8|log:2"),
    ),
    EvaluationMetric(
        key="preference_margin",
        title="Preference margin",
        unit="nats",
        note="How much likelier the model finds the better one of two answers, as a whole: what "
        "learning from comparisons raises. Negative where better answers are longer.",
        phrase="{value} nats for the better answer",
        row_statistics=text_scores.preference_margin,
        signature=signed("nll:sum|over:answer"),
    ),
    EvaluationMetric(
        key="ranking",
        title="Right rankings",
        unit="share",
        note="Pairs of answers of which the model finds the better one likelier, as a whole: long "
        "answers are less likely than short ones, so that few may be right at first.",
        phrase="{value} right rankings",
        is_binary=True,
        row_statistics=text_scores.ranking,
        signature=signed("nll:sum|over:answer"),
    ),
    EvaluationMetric(
        key="cut_off",
        title="Cut off",
        unit="share",
        better="lower",
        note="Answers that reached the maximum length: if there are many, other scores suffer.",
        phrase="{value} cut off",
        is_binary=True,
        needs_reference=False,
        row_statistics=text_scores.cut_off,
        signature=signed("reason:length"),
    ),
    EvaluationMetric(
        key="empty",
        title="Empty answers",
        unit="share",
        better="lower",
        note="Answers without text: often a sign of a wrong chat template.",
        phrase="{value} empty answers",
        is_binary=True,
        needs_reference=False,
        row_statistics=text_scores.empty,
        signature=signed("space:no"),
    ),
    EvaluationMetric(
        key="repeats",
        title="Repetitive answers",
        unit="share",
        better="lower",
        note="Answers that end by repeating the same words: often a sign of too much training.",
        phrase="{value} repetitive answers",
        is_binary=True,
        needs_reference=False,
        row_statistics=text_scores.repeats,
        signature=signed("loop:80 characters|times:5"),
    ),
    EvaluationMetric(
        key="answer_tokens",
        title="Answer length",
        unit="tokens",
        better="neither",
        note="Mean length of an answer: a jump explains changes of other scores.",
        phrase="{value} tokens per answer",
        needs_reference=False,
        row_statistics=text_scores.answer_tokens,
        signature=signed("mean:rows"),
    ),
)
