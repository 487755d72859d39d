"""What a page can do, a program can do: each action of a page has its call of the API."""

import pytest
from fastapi.routing import APIRoute

from studio.web.api.conventions import ApiRoute
from studio.web.routers import API, PAGES, load_router

FORM = ""
"""Of what only lays a form out anew: a program has no form, and calls what the form would."""

PERSON = ""
"""Of what is between a person and a browser: signing in and out, the language, what was seen."""

OPENAI = ""
"""Of chats: a program calls /v1/chat/completions or /v1/completions, as in OpenAI's API."""

ACTIONS = {
    "/language": PERSON,
    "/login": PERSON,
    "/login/password": PERSON,
    "/logout": PERSON,
    "/settings/access/browsers": PERSON,
    "/settings/access/browsers/{number}": PERSON,
    "/settings/access/password": PERSON,
    "/settings/access/tokens": "POST /tokens",
    "/settings/access/tokens/{number}": "DELETE /tokens/{number}",
    "/settings/people": "POST /accounts",
    "/settings/people/{number}/link": "POST /accounts/{account_id}/link",
    "/settings/people/{number}/remove": "DELETE /accounts/{account_id}",
    "/settings/people/{number}/role": "PATCH /accounts/{account_id}",
    "/runs/bulk": "POST /bulk",
    "/runs/seen": PERSON,
    "/runs/{run_id}/words": "PATCH /runs/{run_id}",
    "/runs/{run_id}/trash": "PATCH /runs/{run_id}",
    "/runs/{run_id}/restore": "PATCH /runs/{run_id}",
    "/runs/{run_id}/delete": "DELETE /runs/{run_id}",
    "/runs/{run_id}/again": "POST /runs/{run_id}/again",
    "/runs/{run_id}/chat/answers": OPENAI,
    "/runs/{run_id}/chat/load": OPENAI,
    "/runs/{run_id}/chat/scores": OPENAI,
    "/playground/answers": OPENAI,
    "/playground/code": FORM,
    "/playground/scores": OPENAI,
    "/graders/form": FORM,
    "/graders/train": FORM,
    "/graders/try": "POST /graders/trials",
    "/runs/{run_id}/try": "POST /runs/{run_id}/predict",
    "/runs/{run_id}/cancel": "POST /runs/{run_id}/cancel",
    "/runs/{run_id}/keep": "POST /runs/{run_id}/keep",
    "/runs/{run_id}/pause": "POST /runs/{run_id}/pause",
    "/runs/{run_id}/resume": "POST /runs/{run_id}/resume",
    "/runs/{run_id}/retry": "POST /runs/{run_id}/retry",
    "/runs/{run_id}/restart": "POST /runs/{run_id}/retry",
    "/runs/{run_id}/benchmarks": "POST /runs/{run_id}/benchmarks",
    "/runs/{run_id}/benchmarks/{benchmark_id}/delete": "DELETE "
    "/runs/{run_id}/benchmarks/{benchmark_id}",
    "/runs/{run_id}/evaluations": "POST /runs/{run_id}/evaluations",
    "/runs/{run_id}/evaluations/{evaluation_id}/delete": "DELETE "
    "/runs/{run_id}/evaluations/{evaluation_id}",
    "/runs/{run_id}/evaluations/{evaluation_id}/judgements": "POST "
    "/runs/{run_id}/evaluations/{evaluation_id}/judgements",
    "/runs/{run_id}/evaluations/{evaluation_id}/judgements/{judgement_id}/delete": "DELETE "
    "/runs/{run_id}/evaluations/{evaluation_id}/judgements/{judgement_id}",
    "/runs/{run_id}/evaluations/{evaluation_id}/vote": "POST "
    "/runs/{run_id}/evaluations/{evaluation_id}/votes",
    "/runs/{run_id}/evaluations/{evaluation_id}/feedback": "POST /feedback",
    "/runs/{run_id}/evaluations/{evaluation_id}/leave-out": "POST /datasets/{dataset_id}/exclude",
    "/runs/{run_id}/exports": "POST /runs/{run_id}/exports",
    "/runs/{run_id}/exports/{export_id}/delete": "DELETE /runs/{run_id}/exports/{export_id}",
    "/runs/{run_id}/exports/{export_id}/model": "POST /runs/{run_id}/exports/{export_id}/model",
    "/runs/{run_id}/exports/{export_id}/pushes": ("POST /runs/{run_id}/exports/{export_id}/pushes"),
    "/runs/{run_id}/trackers": "POST /runs/{run_id}/trackers",
    "/runs/{run_id}/trackers/{key}/delete": "DELETE /runs/{run_id}/trackers/{key}",
    "/runs/{run_id}/trackers/{key}/retry": "POST /runs/{run_id}/trackers/{key}/retry",
    "/samples/{sample_id}/rating": "PUT /runs/{run_id}/samples/{position}/rating",
    "/views": "POST /views",
    "/views/{view_id}/delete": "DELETE /views/{view_id}",
    "/new": "POST /runs",
    "/quick-start": "POST /runs",
    "/new/sweep": "POST /experiments",
    "/new/sight": "POST /datasets/{dataset_id}/preview",
    "/new/advice": "POST /plan",
    "/new/models": "POST /plan",
    "/new/calibrate": "POST /estimate/calibration",
    "/new/lengths": "POST /datasets/{dataset_id}/stats",
    "/new/measure": "POST /estimate/measurement",
    "/new/draft": FORM,
    "/endpoints/new": "POST /endpoints",
    "/endpoints/{endpoint_id}/start": "POST /endpoints/{endpoint_id}/start",
    "/endpoints/{endpoint_id}/stop": "POST /endpoints/{endpoint_id}/stop",
    "/endpoints/{endpoint_id}/delete": "DELETE /endpoints/{endpoint_id}",
    "/new/import": "POST /recipes/import",
    "/new/import/form": FORM,
    "/experiments/{experiment_id}": "PATCH /experiments/{experiment_id}",
    "/experiments/{experiment_id}/runs": "POST /experiments/{experiment_id}/runs",
    "/experiments/{experiment_id}/delete": "DELETE /experiments/{experiment_id}",
    "/compare/seeds": "POST /runs/{run_id}/again",
    "/comparisons": "POST /comparisons",
    "/comparisons/{number}": "PATCH /comparisons/{number}",
    "/comparisons/{number}/delete": "DELETE /comparisons/{number}",
    "/datasets": "POST /datasets",
    "/datasets/imports": "POST /datasets",
    "/datasets/{dataset_id}/name": "PATCH /datasets/{dataset_id}",
    "/datasets/{dataset_id}/delete": "DELETE /datasets/{dataset_id}",
    "/datasets/{dataset_id}/stats": "POST /datasets/{dataset_id}/stats",
    "/datasets/{dataset_id}/exclude": "POST /datasets/{dataset_id}/exclude",
    "/datasets/{dataset_id}/versions/{number}/use": "PATCH /datasets/{dataset_id}",
    "/datasets/{dataset_id}/versions/{number}/delete": (
        "DELETE /datasets/{dataset_id}/versions/{number}"
    ),
    "/datasets/{dataset_id}/versions/{number}/leave-out": "POST /datasets/{dataset_id}/exclude",
    "/datasets/{dataset_id}/versions/{number}/look": "POST /datasets/{dataset_id}/look",
    "/datasets/{dataset_id}/mapping": "POST /datasets/{dataset_id}/versions",
    "/datasets/{dataset_id}/mapping/preview": "POST /datasets/{dataset_id}/mapping/preview",
    "/datasets/{dataset_id}/mapping/form": FORM,
    "/feedback/datasets": "POST /feedback/datasets",
    "/feedback/{feedback_id}/delete": "DELETE /feedback/{feedback_id}",
    "/models/folder": "POST /models",
    "/models/download": "POST /models",
    "/models/{model_id}/consent": "POST /models/{model_id}/consent",
    "/models/{model_id}/consent/revoke": "DELETE /models/{model_id}/consent",
    "/models/{model_id}/remove": "DELETE /models/{name:path}",
    "/queue/{run_id}/move": "POST /runs/{run_id}/move",
    "/queue/{run_id}/hold": "PATCH /runs/{run_id}",
    "/queue/{run_id}/priority": "PATCH /runs/{run_id}",
    "/queue/loaded/stop": "DELETE /queue/loaded",
    "/queue/{run_id}/cancel": "POST /runs/{run_id}/cancel",
    "/reports/precision/new": "POST /experiments/{experiment_id}/studies",
    "/reports/precision/{study_id}/delete": "DELETE /studies/{study_id}",
    "/sweeps/new": "POST /sweeps",
    "/sweeps/new/prospect": "POST /sweeps/prospect",
    "/sweeps/{sweep_id}/{verb}": "POST /sweeps/{sweep_id}/pause",
    "/settings/gpus/{gpu}/release": "POST /hardware/gpus/{gpu}/release",
    "/settings/secrets/{name}": "PUT /secrets/{name}",
    "/settings/secrets/{name}/forget": "DELETE /secrets/{name}",
    "/settings/notices/test": "POST /deliveries/test",
    "/chores/{chore_id}/cancel": "DELETE /chores/{chore_id}",
    "/chores/{chore_id}/again": "POST /chores/{chore_id}/again",
}
"""What each page sends, and the call that does the same."""

OTHERS = ("/metrics", "/v1")
"""What speaks another's language: Prometheus's, OpenAI's."""

CALLS = [
    route
    for name, addresses in API.items()
    if addresses not in OTHERS
    for route in load_router(name).routes
]


def test_every_page_action_has_api_call() -> None:
    sent = {
        route.path
        for name in PAGES
        for route in load_router(name).routes
        if isinstance(route, APIRoute)
        if {"POST", "PUT", "PATCH", "DELETE"} & set(getattr(route, "methods", None) or ())
    }

    assert sent == set(ACTIONS), "A new action of a page needs a call of the API, and a row here."


@pytest.mark.parametrize("call", sorted(filter(None, ACTIONS.values())))
def test_named_api_calls_exist(call: str) -> None:
    there = {
        f"{method} {getattr(route, 'path', '').removeprefix('/api/v1')}"
        for route in CALLS
        for method in getattr(route, "methods", None) or ()
    }

    assert call in there


def test_every_api_route_uses_api_route_class() -> None:
    others = [getattr(route, "path", route) for route in CALLS if not isinstance(route, ApiRoute)]

    assert others == [], "Make its router with route_class=Call."
