"""Check which models the training methods can train, and explain why others are refused."""

from collections.abc import Collection

from studio.errors import InvalidError
from studio.methods import METHODS
from studio.methods.base import Method
from studio.weights.architectures import CAUSAL_MODEL_HINT, KIND_DESCRIPTIONS, ModelKind


def untrainable_reason(
    kind: ModelKind | None, family: str, methods: Collection[Method] = tuple(METHODS.values())
) -> str:
    """Return why none of these methods can train a model, as sentences, or "" if one can.

    A kind of None is unknown until the model is loaded, so it is not refused.
    """
    fitting = [method for method in methods if kind in method.trainable_kinds]
    if kind is None or any(not method.families or family in method.families for method in fitting):
        return ""
    titles = " or ".join(method.title for method in fitting or methods)
    reason = f"The method {titles} cannot train {family} models."
    return " ".join((KIND_DESCRIPTIONS[kind], reason))


def refuse_untrainable(kind: ModelKind | None, family: str, param: str) -> None:
    """Refuse a model that no method can train.

    Raises:
        InvalidError: no method trains models of this kind.

    """
    if message := untrainable_reason(kind, family):
        raise InvalidError(message, hint=CAUSAL_MODEL_HINT, param=param)
