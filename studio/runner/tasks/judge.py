"""Judge the answers of two models to the same rows."""

from itertools import chain
from typing import Any

from studio.protocols.judging import RESULTS_FILE, JudgementJob, Pair, PairResult
from studio.protocols.tasks import TaskDir
from studio.runner.execution import ReportProgress
from studio.runner.judges.both_orders import Judge
from studio.runner.judges.endpoint import Endpoint
from studio.settings import Settings


def judge(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Judge the pairs of a judgement. A further attempt continues after what has been judged."""
    job = JudgementJob.model_validate(params)
    path = folder.files / RESULTS_FILE
    results = read_results(path.read_bytes()) if path.exists() else {}
    path.write_text("".join(f"{one.model_dump_json()}\n" for one in results.values()))
    left = [pair for pair in job.pairs if pair.position not in results]
    equal, differing = (
        [pair for pair in left if (pair.base == pair.tuned) is is_equal]
        for is_equal in (True, False)
    )
    report("judging", len(results) / len(job.pairs))
    with path.open("a") as file:
        for result in chain(map(_tie, equal), _build_judge(job)(differing)):
            results[result.position] = result
            file.write(result.model_dump_json() + "\n")
            file.flush()
            report("judging", len(results) / len(job.pairs))
    return {"pairs": [results[place].model_dump() for place in sorted(results)]}


def _tie(pair: Pair) -> PairResult:
    """Return the result of equal answers, of which no judge is asked."""
    words = "Both answers are equal."
    return PairResult(
        position=pair.position,
        base_first="tie",
        tuned_first="tie",
        base_first_reply=words,
        tuned_first_reply=words,
    )


def read_results(content: bytes) -> dict[int, PairResult]:
    """Return results by position; a kill may have cut off the last line."""
    lines = content.rpartition(b"\n")[0].splitlines()
    results = [PairResult.model_validate_json(line) for line in lines]
    return {result.position: result for result in results}


def _build_judge(job: JudgementJob) -> Judge:
    if job.judge.kind == "endpoint":
        settings = Settings()
        return Endpoint(
            job.judge,
            key=settings.judge_key.get_secret_value(),
            allow_internal=settings.allow_internal_addresses,
        ).judge
    from studio.runner.judges import local_models  # noqa: PLC0415 -- heavy import

    return local_models.build(job.judge)
