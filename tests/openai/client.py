"""What OpenAI's own client is asked of a studio: run as a program, with whichever client there is.

    STUDIO_URL=… [STUDIO_MODEL=ft:…] python -m tests.openai.client

It prints one line of JSON for each check: its name, and what went wrong or nothing. The examples
are those of OpenAI's guide to fine-tuning. Where a tuned model is named none is made.
"""

import json
import sys
import traceback
from typing import Any

import openai

from tests.openai.connection import QUESTION, ROWS, TINY, client, known, lines, refused, until
from tests.openai.reinforcement import check_a_model_learns_from_scores

__all__ = ["check_a_model_learns_from_scores"]


def check_files_are_brought_and_read_back() -> None:
    training = client.files.create(file=("marv.jsonl", lines(ROWS)), purpose="fine-tune")
    validation = client.files.create(file=("check.jsonl", lines(ROWS[:4])), purpose="fine-tune")
    known["training"], known["validation"] = training.id, validation.id

    assert client.files.wait_for_processing(training.id).status == "processed"
    assert client.files.content(training.id).read() == lines(ROWS).read()
    assert training.id in [file.id for file in client.files.list(purpose="fine-tune", limit=1)]


def check_a_file_that_teaches_nothing_says_why() -> None:
    rows = [{"messages": [{"role": "robot", "content": "Hi"}]}]
    broken = client.files.create(file=("broken.jsonl", lines(rows)), purpose="fine-tune")

    told = client.files.wait_for_processing(broken.id)
    assert (told.status, "Line 1: A turn has a role" in told.status_details) == ("error", True)
    assert client.files.delete(broken.id).deleted is True


def check_a_job_is_trained() -> None:
    if known["model"]:
        known["job"] = f"ftjob-{known['model'].rpartition(':')[2]}"
        return
    job = client.fine_tuning.jobs.create(
        training_file=known["training"],
        validation_file=known["validation"],
        model="starter",
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": "auto"}},
        },
        suffix="marv",
        seed=7,
        metadata={"team": "a"},
        extra_body={"x_studio": TINY},
    )
    assert job.status == "validating_files"
    told = until("succeeded", job.id)
    known["job"], known["model"] = told.id, told.fine_tuned_model


def check_a_model_learns_from_preferences() -> None:
    """Use the rows and the job of OpenAI's guide to direct preference optimisation."""
    pairs = [
        {
            "input": {"messages": [{"role": "user", "content": f"What is the capital of {land}?"}]},
            "preferred_output": [{"role": "assistant", "content": f"Town {land}."}],
            "non_preferred_output": [{"role": "assistant", "content": "Who knows?"}],
        }
        for land in range(16)
    ]
    file = client.files.create(file=("pairs.jsonl", lines(pairs)), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        training_file=file.id,
        model="starter",
        method={
            "type": "dpo",
            "dpo": {"hyperparameters": {"n_epochs": 1, "beta": 0.2, "batch_size": "auto"}},
        },
        extra_body={"x_studio": TINY},
    )
    ended = until("succeeded", job.id)

    assert (ended.method.type, ended.method.dpo.hyperparameters.beta) == ("dpo", 0.2)
    assert ended.fine_tuned_model
    events = client.fine_tuning.jobs.list_events(job.id).data
    assert any("train_loss" in (one.data or {}) for one in events)


def check_a_job_is_told_as_openai_does() -> None:
    job = client.fine_tuning.jobs.retrieve(known["job"])

    assert job.fine_tuned_model == known["model"] == f"ft:starter:local:marv:{job.id[6:]}"
    assert (job.seed, job.metadata, job.error) == (7, {"team": "a"}, None)
    assert job.method.supervised.hyperparameters.n_epochs == 2
    assert job.trained_tokens > 0
    assert job.finished_at >= job.created_at
    assert job.x_studio["recipe"]["optimisation"]["max_steps"] == 3
    assert job.x_studio["resolved"]


def check_jobs_are_listed() -> None:
    assert known["job"] in [job.id for job in client.fine_tuning.jobs.list(limit=10)]
    mine = client.fine_tuning.jobs.list(limit=1, metadata={"team": "a"})
    assert known["job"] in [job.id for job in mine]
    nobodys = client.fine_tuning.jobs.list(metadata={"team": "nobody's"})
    assert list(nobodys) == []


def check_events_are_told_newest_first() -> None:
    first = client.fine_tuning.jobs.list_events(fine_tuning_job_id=known["job"], limit=2)
    every = list(client.fine_tuning.jobs.list_events(known["job"], limit=3))

    assert [one.id for one in every[:2]] == [one.id for one in first.data]
    assert len({one.id for one in every}) == len(every)
    told = [one.data for one in every if one.type == "metrics"]
    # Before the first step the model is measured as it was.
    assert [one["step"] for one in told] == [3, 2, 1, 0]
    assert all(one["train_loss"] > 0 for one in told[:-1])
    assert told[-1]["valid_loss"] > 0


def check_checkpoints_are_told() -> None:
    (last, before) = client.fine_tuning.jobs.checkpoints.list(known["job"])
    named = f"{known['model']}:ckpt-step-2"

    assert (last.fine_tuned_model_checkpoint, last.step_number) == (known["model"], 3)
    assert (before.fine_tuned_model_checkpoint, before.step_number) == (named, 2)
    assert last.metrics.full_valid_loss > 0


def check_results_are_a_table() -> None:
    job = client.fine_tuning.jobs.retrieve(known["job"])
    table = client.files.content(job.result_files[0]).read().decode().splitlines()

    assert table[0].startswith("step,train_loss,train_accuracy,valid_loss")
    assert [line.partition(",")[0] for line in table[1:]] == ["0", "1", "2", "3"]
    assert client.files.retrieve(job.result_files[0]).purpose == "fine-tune-results"


def check_models_are_listed() -> None:
    names = [model.id for model in client.models.list()]

    assert {known["model"], "starter"} <= set(names)
    assert client.models.retrieve(known["model"]).id == known["model"]


def check_the_tuned_model_answers() -> None:
    completion = client.chat.completions.create(
        model=known["model"],
        messages=[
            {"role": "system", "content": "Marv is a factual chatbot that is also sarcastic."},
            {"role": "user", "content": "What is two plus two?"},
        ],
        max_tokens=8,
        temperature=0,
    )
    choice = completion.choices[0]

    assert choice.message.role == "assistant"
    assert choice.message.content
    assert completion.usage.completion_tokens <= 8
    assert completion.usage.prompt_tokens > 8


def check_a_checkpoint_answers() -> None:
    named = f"{known['model']}:ckpt-step-2"
    told = client.chat.completions.create(model=named, messages=QUESTION, max_tokens=4)
    text = client.completions.create(model=named, prompt="Once upon a", max_tokens=2)
    gone = f"{known['model']}:ckpt-step-1"
    refusal = refused(
        openai.NotFoundError,
        lambda: client.chat.completions.create(model=gone, messages=QUESTION),
    )

    assert (told.model, told.choices[0].message.role) == (named, "assistant")
    assert 1 <= text.usage.completion_tokens <= 2
    assert client.models.retrieve(named).id == named
    assert refusal.code == "model_not_found"
    assert f"Use {known['model']}, or a step that was kept: 2." in str(refusal)


def check_an_answer_is_streamed() -> None:
    whole = client.chat.completions.create(
        model=known["model"], messages=QUESTION, max_completion_tokens=8, temperature=0
    )
    stream = client.chat.completions.create(
        model=known["model"],
        messages=QUESTION,
        max_completion_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    said = [one.choices[0].delta.content or "" for one in chunks if one.choices]

    assert "".join(said) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def check_the_base_answers_beside_it() -> None:
    words = {"messages": QUESTION, "max_tokens": 6, "temperature": 1.0, "seed": 3}
    first = client.chat.completions.create(model="starter", **words)
    again = client.chat.completions.create(model="starter", **words)

    assert first.choices[0].message.content == again.choices[0].message.content


def check_a_text_is_gone_on_with() -> None:
    told = client.completions.create(model=known["model"], prompt="Once upon a", max_tokens=4)
    parts = client.completions.create(
        model="starter", prompt="Once upon a", max_tokens=4, stream=True
    )

    assert told.object == "text_completion"
    assert 1 <= told.usage.completion_tokens <= 4
    assert len(list(parts)) > 1


def check_an_answer_has_its_logprobs() -> None:
    words: dict[str, Any] = {
        "model": known["model"],
        "messages": QUESTION,
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 4,
    }
    told = client.chat.completions.create(**words).choices[0]
    streamed = client.chat.completions.create(**words, stream=True)
    content = told.logprobs.content
    parts = [one.choices[0].logprobs for one in streamed if one.choices]
    joined = b"".join(bytes(one.bytes or []) for one in content).decode()

    assert joined.lstrip() == told.message.content
    for one in content:
        # Greedy decoding takes the likeliest.
        assert (one.token, one.logprob) == (one.top_logprobs[0].token, one.top_logprobs[0].logprob)
        assert 0 >= one.top_logprobs[0].logprob >= one.top_logprobs[3].logprob
    assert [one for part in parts if part for one in part.content] == content


def check_an_answer_follows_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}},
        "required": ["city", "sure"],
        "additionalProperties": False,
    }
    for wanted in (schema, None):
        kind = "json_schema" if wanted else "json_object"
        form: Any = {"type": kind}
        if wanted:
            form["json_schema"] = {"name": "place", "strict": True, "schema": wanted}
        answer = client.chat.completions.create(
            model="starter",
            messages=[{"role": "user", "content": "Where is it?"}],
            response_format=form,
            max_completion_tokens=200,
        ).choices[0]
        if wanted:
            assert answer.finish_reason == "stop"
            told = json.loads(str(answer.message.content))
            assert told["city"] in {"Paris", "Rome"}
            assert isinstance(told["sure"], bool)
        else:
            assert str(answer.message.content).startswith("{")

    def ask_for_nonsense() -> object:
        wrong = {"name": "x", "schema": {"type": "objekt"}}
        form: Any = {"type": "json_schema", "json_schema": wrong}
        return client.chat.completions.create(
            model="starter",
            messages=[{"role": "user", "content": "Where is it?"}],
            response_format=form,
        )

    assert "cannot be followed" in str(refused(openai.BadRequestError, ask_for_nonsense))


def check_a_prompt_is_scored() -> None:
    text = "Once upon a time"
    words = {"model": known["model"], "prompt": text, "echo": True, "logprobs": 2}
    told = client.completions.create(**words, max_tokens=0)
    longer = client.completions.create(**words, max_tokens=3, temperature=0)
    scored = told.choices[0].logprobs

    assert (told.choices[0].text, told.usage.completion_tokens) == (text, 0)
    assert scored.token_logprobs[0] is None
    assert len(scored.tokens) == told.usage.prompt_tokens
    assert all(logprob < 0 for logprob in scored.token_logprobs[1:])
    assert longer.choices[0].text.startswith(text)
    found = longer.choices[0].logprobs
    assert found.tokens[: len(scored.tokens)] == scored.tokens
    assert len(found.tokens) in (len(scored.tokens) + n for n in (0, 1, 2, 3))
    refusal = refused(
        openai.BadRequestError,
        lambda: client.completions.create(model="starter", prompt=text, max_tokens=0),
    )
    assert "set echo to true" in str(refusal)


def check_an_answer_is_scored_as_it_is_written() -> None:
    """Give what a model wrote to be scored: it is as likely as when it was written."""
    words = {"model": known["model"], "messages": QUESTION, "logprobs": True}
    told = client.chat.completions.create(**words, max_tokens=4, temperature=0)
    answer = told.choices[0].message.content
    given = client.chat.completions.create(**words, extra_body={"x_studio": {"score": answer}})
    wrote, scored = (one.choices[0].logprobs.content for one in (told, given))

    assert given.choices[0].message.content == answer
    assert given.usage.prompt_tokens == told.usage.prompt_tokens
    assert given.usage.completion_tokens == len(scored)
    if [one.bytes for one in scored[: len(wrote)]] == [one.bytes for one in wrote]:
        for mine, theirs in zip(scored, wrote, strict=False):
            assert abs(mine.logprob - theirs.logprob) < 1e-4
    assert scored[-1].bytes is None  # the token that ends the turn


def check_several_answers_are_told_apart() -> None:
    words = {"model": "starter", "messages": QUESTION, "max_tokens": 6, "n": 3}
    drawn = client.chat.completions.create(**words, temperature=1.5, seed=3)
    again = client.chat.completions.create(**words, temperature=1.5, seed=3)
    equal = client.chat.completions.create(**words, temperature=0)
    second = client.chat.completions.create(**words | {"n": 1}, temperature=1.5, seed=4)
    said = [choice.message.content for choice in drawn.choices]

    assert said == [choice.message.content for choice in again.choices]
    assert (len(set(said)), said[1]) == (3, second.choices[0].message.content)
    assert len({choice.message.content for choice in equal.choices}) == 1
    assert 3 < equal.usage.completion_tokens <= 18


def check_whoever_hangs_up_keeps_nobody_waiting() -> None:
    stream = client.chat.completions.create(model="starter", messages=QUESTION, stream=True)
    next(iter(stream))
    stream.close()

    answer = client.chat.completions.create(model="starter", messages=QUESTION, max_tokens=1)
    assert answer.usage.completion_tokens == 1


def check_an_answer_is_graded() -> None:
    """Use the graders of OpenAI's guide; several of them are named in a `multi`."""
    texts = {"input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}
    exact = {"type": "string_check", "name": "exact", "operation": "like"} | texts
    near = {"type": "text_similarity", "name": "near", "evaluation_metric": "fuzzy_match"}
    near |= texts | {"input": "{{ sample.output_json.city }}"}
    source = "def grade(sample, item):\n    return 1.0 / len(sample['output_text'].split())"
    program = {"type": "python", "name": "short", "source": source}
    asked = [{"role": "user", "content": "Rate: {{ sample.output_text }}"}]
    judge: dict[str, Any] = {"type": "score_model", "name": "judge", "model": "starter"}
    judge |= {"input": asked, "range": [0, 10], "sampling_params": {"max_completions_tokens": 64}}
    several: dict[str, Any] = {
        "type": "multi",
        "name": "several",
        "graders": {"exact": exact, "near": near, "short": program},
        "calculate_output": "0.5 * exact + 0.25 * near + 0.25 * short",
    }
    graders = client.fine_tuning.alpha.graders
    answer = {"model_sample": '{"city": "Paris!"}', "item": {"answer": "Paris"}}
    told = graders.run(grader=several, **answer)
    rated = graders.run(grader=judge, **answer)
    broken = graders.run(grader=near, model_sample="Paris", item={"answer": "Paris"})

    assert told.sub_rewards == {"exact": 1.0, "near": 10 / 11, "short": 0.5}
    assert abs(told.reward - (0.5 + 0.25 * 10 / 11 + 0.125)) < 1e-9
    assert (told.metadata.name, told.metadata.type) == ("several", "multi")
    # A number that is cut off after 64 tokens is no score; any other is within its range.
    flags = rated.metadata.errors.to_dict()
    assert rated.metadata.sampled_model_name == "starter", flags
    assert flags["model_grader_parse_error"] or 0 <= rated.reward <= 10
    assert (broken.reward, broken.metadata.errors.sample_parse_error) == (None, True)
    for grader in (exact, near, program, judge, several):
        assert graders.validate(grader=grader).grader.to_dict() == grader
    wrong = several | {"calculate_output": "exact +"}
    refusal = refused(openai.BadRequestError, lambda: graders.validate(grader=wrong))
    assert refusal.param == "grader.calculate_output"


def check_what_there_is_not_is_refused() -> None:
    jobs = client.fine_tuning.jobs
    distillation: Any = {"type": "distillation"}
    wandb: Any = [{"type": "wandb", "wandb": {"project": "p"}}]
    file = known["training"]
    told = [
        refused(kind, work)
        for kind, work in (
            (openai.BadRequestError, lambda: jobs.create(model="starter", training_file="file-0")),
            (
                openai.BadRequestError,
                lambda: jobs.create(model="starter", training_file=file, method=distillation),
            ),
            (
                openai.BadRequestError,
                lambda: jobs.create(model="starter", training_file=file, integrations=wandb),
            ),
            (openai.NotFoundError, lambda: jobs.retrieve("ftjob-0")),
            (
                openai.NotFoundError,
                lambda: client.chat.completions.create(model="gpt-4o", messages=QUESTION),
            ),
            (openai.ConflictError, lambda: jobs.resume(known["job"])),
        )
    ]

    assert [one.code for one in told] == [
        "invalid_training_file",
        "unsupported_method",
        "unsupported_parameter",
        "fine_tune_not_found",
        "model_not_found",
        "conflict",
    ]
    assert told[-1].response.request.headers["x-stainless-retry-count"] == "0"


def check_a_job_is_paused_resumed_and_cancelled() -> None:
    jobs = client.fine_tuning.jobs
    endless = TINY | {"optimisation": {"max_steps": 100_000}}
    job = jobs.create(
        model="starter", training_file=known["training"], extra_body={"x_studio": endless}
    )
    until("running", job.id)
    assert jobs.pause(job.id).status == "pausing"
    until("paused", job.id)
    assert jobs.resume(job.id).status in {"queued", "running"}
    assert jobs.cancel(job.id).status == "cancelled"


def main() -> int:
    for name, check in list(globals().items()):
        if not name.startswith("check_"):
            continue
        try:
            check()
            problem = ""
        except Exception:  # noqa: BLE001 -- each check is told of, whatever befalls it
            problem = traceback.format_exc()
        said = {"check": name, "problem": problem, "model": known["model"]}
        sys.stdout.write(json.dumps(said) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
