"""OpenAI's reinforcement fine-tuning, from a file to a chat."""

from typing import Any

from tests.openai.connection import QUESTION, TINY, client, lines, until

GRADER: dict[str, Any] = {
    "type": "multi",
    "name": "close and short",
    "graders": {
        "close": {
            "type": "text_similarity",
            "name": "close",
            "input": "{{ sample.output_text }}",
            "reference": "{{ item.capital }}",
            "evaluation_metric": "fuzzy_match",
        },
        "short": {
            "type": "python",
            "name": "short",
            "source": "def grade(sample, item):\n    return 1 / (1 + len(sample['output_text']))\n",
        },
    },
    "calculate_output": "0.8 * close + 0.2 * short",
}
SHORT = TINY | {"rollouts": {"max_new_tokens": 8, "validation_prompts": 4}}


def check_a_model_learns_from_scores() -> None:
    """Use the rows and the job of OpenAI's guide to reinforcement fine-tuning."""
    rows = [
        {
            "messages": [{"role": "user", "content": f"What is the capital of land {number}?"}],
            "capital": f"Town {number}",
        }
        for number in range(16)
    ]
    file = client.files.create(file=("lands.jsonl", lines(rows)), purpose="fine-tune")
    hyperparameters = {"batch_size": 2, "compute_multiplier": 0.5, "eval_interval": 2}
    method: Any = {
        "type": "reinforcement",
        "reinforcement": {"grader": GRADER, "hyperparameters": hyperparameters},
    }
    job = client.fine_tuning.jobs.create(
        training_file=file.id, model="starter", method=method, extra_body={"x_studio": SHORT}
    )
    ended = until("succeeded", job.id)

    used = ended.method.reinforcement
    assert ended.method.type == "reinforcement"
    assert (used.hyperparameters.batch_size, used.hyperparameters.compute_multiplier) == (2, 0.5)
    assert used.grader.calculate_output == GRADER["calculate_output"]
    events = client.fine_tuning.jobs.list_events(job.id).data
    assert any("valid_mean_reward" in (event.data or {}) for event in events)
    answer = client.chat.completions.create(model=ended.fine_tuned_model, messages=QUESTION)
    assert answer.choices[0].message.role == "assistant"
