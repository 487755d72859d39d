"""The chunked divergence on a GPU, whose 16-bit products are computed in another way."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from studio.methods.distil import divergence
from studio.methods.distil.divergence import AnswerStates, Divergence
from tests.training.data.test_divergence import VOCABULARY, states

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
    pytest.mark.filterwarnings("ignore"),
]


def moved(model: AnswerStates) -> AnswerStates:
    layer = replace(model.layer, weight=model.layer.weight.detach().cuda().requires_grad_())
    hidden = model.hidden.detach().cuda().requires_grad_()
    return AnswerStates(hidden=hidden, layer=layer, labels=model.labels.cuda())


def results(student: AnswerStates, teacher: AnswerStates, beta: float) -> list[Tensor]:
    """Return the values and the gradients of hidden states and weights, in float32."""
    found = divergence.compare(student, teacher, Divergence(beta, 1.5))
    loss = found.divergence.sum() - 0.3 * found.log_probs.sum()
    gradients = torch.autograd.grad(loss, [student.hidden, student.layer.weight])
    return [one.detach().float().cpu() for one in (found.divergence, found.log_probs, *gradients)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_gpu_agrees_with_the_processor(
    beta: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergence, "GPU_CHUNK_VALUES", 5 * VOCABULARY)
    pair = states(1, dtype=dtype), states(2, dtype=dtype)

    expected = results(*pair, beta)
    ours = results(moved(pair[0]), moved(pair[1]), beta)
    near = 1e-4 if dtype is torch.float32 else 0.02
    for value, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=near, atol=near)
