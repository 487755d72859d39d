"""Feedback over REST: said, listed, taken back, and made into datasets."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

API = "/api/v1/feedback"
ASKED = [{"role": "user", "content": "What is two plus two?"}]


def say(client: TestClient, **changes: Any) -> Any:  # noqa: ANN401 -- the client's response
    return client.post(API, json={"prompt": ASKED, "answer": "Four."} | changes)


def test_feedback_is_listed_newest_first_by_kind(client: TestClient) -> None:
    said = say(client, label=True, model="starter", temperature=0, seed=2**63 - 1)
    say(client, rejected="Five.")

    listed = client.get(API).json()
    judged = client.get(API, params={"kind": "judged"}).json()["data"]

    assert said.status_code == 201
    assert said.headers["location"] == f"{API}/{said.json()['id']}"
    assert [one["kind"] for one in listed["data"]] == ["preference", "judged"]
    assert judged == [said.json()] == [client.get(said.headers["location"]).json()]
    assert (judged[0]["said_in"], judged[0]["seed"]) == ("api", 2**63 - 1)
    assert judged[0]["row"] == {
        "messages": [*ASKED, {"role": "assistant", "content": "Four."}],
        "label": True,
    }


def test_list_is_paged(client: TestClient) -> None:
    for number in range(3):
        say(client, answer=f"{number}.")

    first = client.get(API, params={"limit": 2}).json()
    rest = client.get(API, params={"limit": 2, "after": first["next_after"]}).json()

    assert [len(first["data"]), len(rest["data"]), rest["has_more"]] == [2, 1, False]


def test_feedback_can_be_taken_back(client: TestClient) -> None:
    there = f"{API}/{say(client).json()['id']}"

    assert client.delete(there).status_code == 204
    gone = client.delete(there)

    assert gone.status_code == 404
    assert client.get(API).json()["data"] == []


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"answer": ""}, 422, "answer"),
        ({"rejected": "Four."}, 422, "rejected"),
        ({"label": "yes"}, 422, "label"),
        ({"prompt": []}, 422, "prompt"),
        ({"prompt": [{"role": "tool", "content": "x"}]}, 422, "prompt.0.role"),
        ({"run_id": 99}, 404, None),
        ({"seed": 2**63}, 422, "seed"),
        ({"kind": "judged"}, 422, "kind"),
    ],
)
def test_wrong_feedback_is_refused(
    client: TestClient, changes: dict[str, Any], status: int, param: str | None
) -> None:
    refused = say(client, **changes)

    assert refused.status_code == status
    assert refused.json()["error"]["param"] == param
    assert client.get(API).json()["data"] == []


def test_dataset_is_made_once_for_the_same_feedback(client: TestClient) -> None:
    say(client, rejected="Five, I am quite sure.")
    asked = {"kind": "preference"}

    made = client.post(f"{API}/datasets", json=asked)
    again = client.post(f"{API}/datasets", json=asked)
    say(client, answer="4", rejected="Five.")
    more = client.post(f"{API}/datasets", json=asked)

    assert [one.status_code for one in (made, again, more)] == [201, 200, 201]
    assert [one.json()["version"] for one in (made, again, more)] == [1, 1, 2]
    assert more.json()["rows"] == 2
    rows = client.get(f"/api/v1/datasets/{made.json()['dataset_id']}/rows").json()["data"]
    assert rows[1]["chosen"] == [{"role": "assistant", "content": "4"}]


def test_dataset_of_nothing_is_refused(client: TestClient) -> None:
    refused = client.post(f"{API}/datasets", json={"kind": "judged"})

    assert refused.status_code == 409
    assert "no feedback" in refused.json()["error"]["message"]


def test_summary_tells_counts_and_length_bias(client: TestClient) -> None:
    say(client, rejected="Five, I am quite sure.")
    say(client, label=True)

    told = client.get(f"{API}/summary").json()

    assert told == {
        "counts": {"preference": 1, "judged": 1, "conversation": 0},
        "longer_chosen": 0.0,
        "good_ratings": 1,
        "min_preferences": 50,
    }


def test_same_request_with_a_key_is_kept_once(client: TestClient) -> None:
    headers = {"Idempotency-Key": "one"}
    body = {"prompt": ASKED, "answer": "Four.", "label": True}

    answers = [client.post(API, json=body, headers=headers) for _ in range(2)]

    assert answers[1].headers["idempotent-replay"] == "true"
    assert answers[0].json() == answers[1].json()
