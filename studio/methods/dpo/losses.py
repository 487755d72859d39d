"""The losses of preference learning, each a function of a batch of pairs.

Formulas follow the papers named beside them and agree with TRL's trainers, which the tests compare.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from studio.methods.dpo import Preference


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """One answer of each pair in a batch, as the model and its reference score them.

    All tensors have one value per pair: shape (pairs,).
    """

    logps: Tensor
    """Log-probability of the whole answer, in nats."""
    reference: Tensor
    """The same by the reference model; zeros for losses without one."""
    tokens: Tensor
    """Number of tokens in the answer, at least 1."""
    confidence: Tensor | None = None
    """How likely the model itself would write the answer; None unless pairs are weighted by it."""

    @property
    def ratio(self) -> Tensor:
        """How much more likely the answer is than under the reference, in nats."""
        return self.logps - self.reference

    @property
    def mean_ratio(self) -> Tensor:
        return self.ratio / self.tokens

    @property
    def mean_logps(self) -> Tensor:
        return self.logps / self.tokens


Loss = Callable[[Answers, Answers, Preference], Tensor]
"""Takes the chosen and the rejected answers, and returns a loss per pair: shape (pairs,)."""


def _sigmoid(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """DPO, arXiv:2305.18290, with conservative label smoothing."""
    margin, smoothing = spec.beta * (chosen.ratio - rejected.ratio), spec.label_smoothing
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)


def _sigmoid_norm(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """DPO on the mean log-probability of a token (Tulu 3, arXiv:2411.15124)."""
    return -logsigmoid(spec.beta * (chosen.mean_ratio - rejected.mean_ratio))


def _hinge(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """SLiC, arXiv:2305.10425."""
    return torch.relu(1 - spec.beta * (chosen.ratio - rejected.ratio))


def _ipo(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """IPO, arXiv:2310.12036, equation 17, per token as its authors advise."""
    return (chosen.mean_ratio - rejected.mean_ratio - 1 / (2 * spec.beta)) ** 2


def _robust(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """Robust DPO, arXiv:2403.00409: unbiased if a known share of the labels is wrong."""
    margin, wrong = spec.beta * (chosen.ratio - rejected.ratio), spec.label_smoothing
    return (-(1 - wrong) * logsigmoid(margin) + wrong * logsigmoid(-margin)) / (1 - 2 * wrong)


def _exo_pair(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """EXO, arXiv:2402.00856, equation 16: reverse KL divergence from the smoothed preference."""
    margin = spec.beta * (chosen.ratio - rejected.ratio)
    wrong = margin.new_tensor(spec.label_smoothing)
    better = torch.sigmoid(margin) * (logsigmoid(margin) - torch.log1p(-wrong))
    return better + torch.sigmoid(-margin) * (logsigmoid(-margin) - torch.log(wrong))


def _nca_pair(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """NCA, arXiv:2402.05369: keeps the likelihood of the chosen answer from falling."""
    good, bad = spec.beta * chosen.ratio, spec.beta * rejected.ratio
    return -logsigmoid(good) - 0.5 * logsigmoid(-good) - 0.5 * logsigmoid(-bad)


def _bco_pair(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """BCO, arXiv:2404.04656, on pairs and without its running mean."""
    return -logsigmoid(spec.beta * chosen.ratio) - logsigmoid(-spec.beta * rejected.ratio)


def _sppo_hard(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """SPPO, arXiv:2405.00675, equation 4.7, where the chosen answer always wins."""
    target = 0.5 / spec.beta
    return (chosen.ratio - target) ** 2 + (rejected.ratio + target) ** 2


def _aot(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """AOT, arXiv:2406.05882: compares the sorted margins of a batch, not pair by pair."""
    policy = torch.sort(chosen.logps - rejected.logps).values
    reference = torch.sort(chosen.reference - rejected.reference).values
    return _smoothed(spec.beta * (policy - reference), spec.label_smoothing)


def _aot_unpaired(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """AOT for answers to different prompts: both sides are sorted by themselves."""
    margin = torch.sort(chosen.ratio).values - torch.sort(rejected.ratio).values
    return _smoothed(spec.beta * margin, spec.label_smoothing)


def _apo_zero(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """APO, arXiv:2408.06266, equation 7: the chosen answers are better than the model's own."""
    good, bad = spec.beta * chosen.ratio, spec.beta * rejected.ratio
    return torch.sigmoid(-good) + torch.sigmoid(bad)


def _apo_down(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """APO, arXiv:2408.06266, equation 8: even the chosen answers are worse than the model's own."""
    margin = spec.beta * (chosen.ratio - rejected.ratio)
    return torch.sigmoid(spec.beta * chosen.ratio) + torch.sigmoid(-margin)


def _simpo(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """SimPO, arXiv:2405.14734: a target margin between mean log-probabilities."""
    margin = chosen.mean_logps - rejected.mean_logps - spec.target_margin
    return _smoothed(spec.beta * margin, spec.label_smoothing)


def _cpo(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """CPO, arXiv:2401.08417, without its likelihood term: that is the SFT weight."""
    return _smoothed(spec.beta * (chosen.logps - rejected.logps), spec.label_smoothing)


def _orpo(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """ORPO, arXiv:2403.07691: the odds of one answer over the other; needs an SFT weight of 1."""
    return -spec.beta * logsigmoid(_log_odds(chosen.mean_logps) - _log_odds(rejected.mean_logps))


def _log_odds(mean_logps: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of p = exp(mean_logps), finite where p rounds to 1."""
    logps = mean_logps.float().clamp(max=-1e-6)
    return logps - torch.log(-torch.expm1(logps))


def _smoothed(margin: Tensor, smoothing: float) -> Tensor:
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)


LOSSES: Mapping[str, Loss] = {
    "sigmoid": _sigmoid,
    "sigmoid_norm": _sigmoid_norm,
    "hinge": _hinge,
    "ipo": _ipo,
    "robust": _robust,
    "exo_pair": _exo_pair,
    "nca_pair": _nca_pair,
    "bco_pair": _bco_pair,
    "sppo_hard": _sppo_hard,
    "aot": _aot,
    "aot_unpaired": _aot_unpaired,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
    "simpo": _simpo,
    "cpo": _cpo,
    "orpo": _orpo,
}
"""By the names of the recipe, which are TRL's."""


MAX_EXPONENT = 80.0
"""The exponential of more overflows a float32."""


def divergence_score(ratio: Tensor, spec: Preference) -> Tensor:
    """Return f'(t) of a log-ratio log t, for the f-divergence of a recipe (arXiv:2309.16240)."""
    match spec.divergence:
        case "forward_kl":
            return 1 - _exp(-ratio)
        case "js":
            return math.log(2) + logsigmoid(ratio)
        case "alpha":
            power = spec.divergence_alpha - 1
            return (_exp(power * ratio) - 1) / power
    return ratio


def _exp(values: Tensor) -> Tensor:
    return torch.exp(values.float().clamp(max=MAX_EXPONENT))


def _rescored(answers: Answers, spec: Preference) -> Answers:
    """Return answers whose ratio is the score of the recipe's divergence."""
    score = divergence_score(answers.ratio, spec)
    return replace(answers, logps=score, reference=torch.zeros_like(score))


def preference_loss(chosen: Answers, rejected: Answers, spec: Preference) -> Tensor:
    """Return the loss of each pair: shape (pairs,)."""
    pair = chosen, rejected
    if spec.divergence != "reverse_kl":
        pair = _rescored(chosen, spec), _rescored(rejected, spec)
    loss = LOSSES[spec.loss_type](*pair, spec)
    if chosen.confidence is not None and rejected.confidence is not None:
        # WPO, arXiv:2406.11827, equation 2.
        loss = loss * torch.exp(chosen.confidence + rejected.confidence)
    return loss - spec.sft_weight * chosen.mean_logps if spec.sft_weight else loss
