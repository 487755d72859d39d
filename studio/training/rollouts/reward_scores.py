"""What reward models say of answers: questions of graders are read in batches."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from studio.errors import NotFoundError, StudioError
from studio.graders.model_questions import ModelQuestion, ModelReply
from studio.protocols import grader_judges
from studio.training.reward_models import RewardModel


class RewardScores:
    """Asks the reward models of graders, by their names."""

    def __init__(self, models: Mapping[str, RewardModel]) -> None:
        self._models = models

    def ask(self, question: ModelQuestion) -> ModelReply:
        """Ask about one answer.

        Raises:
            StudioError: the model cannot read it, or is not in memory.

        """
        (reply,) = self.ask_together([question])
        if isinstance(reply, StudioError):
            raise reply
        return reply

    def ask_together(self, questions: Sequence[ModelQuestion]) -> list[ModelReply | StudioError]:
        """Ask about many answers at once. An error is that of its question alone."""
        rows: dict[str, dict[int, list[int]]] = defaultdict(dict)
        replies: dict[int, ModelReply | StudioError] = {}
        for number, question in enumerate(questions):
            try:
                rows[question.model][number] = self._tokenise(question)
            except StudioError as error:
                replies[number] = error
        for name, by_number in rows.items():
            scores = self._models[name].score([*by_number.values()]) if by_number else []
            for (number, ids), score in zip(by_number.items(), scores, strict=True):
                asked = questions[number]
                replies[number] = grader_judges.reward_reply(asked, score, len(ids))
        return [replies[number] for number in range(len(questions))]

    def _tokenise(self, question: ModelQuestion) -> list[int]:
        model = self._models.get(question.model)
        if model is None:
            raise NotFoundError(f"The model {question.model[:200]} cannot be asked here.")
        return model.tokenise(question.messages)
