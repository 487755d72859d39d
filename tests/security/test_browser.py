"""What a page of ours, or of somebody else's, could be made to do in a browser."""

import csv
import io
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from starlette.routing import Route

from studio.db.session import read_session, unit_of_work
from studio.db.tables import Run
from studio.services import experiments
from studio.services.runs import runs
from studio.web.accounts.accounts_page import local_path
from studio.web.routers import API, PAGES, load_router
from studio.web.runs import table_export
from studio.web.runs.table_export import TableData
from tests.security.raw_requests import Target, send_raw
from tests.support.page_reader import parse_page

MARKUP = st.builds(
    "{}{}{}".format,
    st.text(st.characters(codec="utf-8", categories=["L", "N"]), max_size=5),
    st.sampled_from(
        ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</title><svg onload=a()>"]
    )
    | st.sampled_from(['" hx-get="/x" a="', "' onclick='a()", "<a href=javascript:a()>", "<!--"]),
    st.text(st.characters(codec="utf-8", categories=["L", "N"]), max_size=5),
)


@settings(max_examples=5, deadline=None)
@given(words=MARKUP)
def test_user_text_is_escaped_on_every_page(place: Target, words: str) -> None:
    with unit_of_work(place.engine) as db:
        run = runs.get(db, 1)
        run.notes, run.tags = words, [words[:50]]
        experiments.get(db, run.experiment_id).name = words
        run.name = words
    for path in ("/", "/runs/1", "/compare?runs=1", f"/?q={words}", "/experiments/1", "/queue"):
        page = place.client.get(path).text
        found = parse_page(page)

        assert words not in page
        assert [one for one in found.all("script") if not one.attributes.get("src")] == []
        assert [
            name
            for one in found.all()
            for name, value in one.attributes.items()
            if name.startswith("on") or value.startswith("javascript:") or value == "/x"
        ] == []


@settings(max_examples=10, deadline=None)
@given(words=MARKUP)
def test_error_pages_escape_request_path(place: Target, words: str) -> None:
    for path in (f"/{words}", f"/runs/{words}", f"/help/knobs/{words}", f"/datasets/{words}"):
        answer = send_raw(place, path)

        assert words.encode() not in answer.body or "json" in answer.headers["content-type"]


DANGEROUS = st.sampled_from(["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"])
CELLS = st.builds("{}{}".format, DANGEROUS, st.text(max_size=20))


@settings(max_examples=50, deadline=None)
@given(name=CELLS, title=CELLS)
def test_exported_csv_cells_cannot_be_formulas(name: str, title: str) -> None:
    made = TableData(
        names=["id", title], titles=[], numeric=[], values=[[1, name], [-2, -1.5]], formatted=[]
    )

    # A quoted cell keeps every line break, so only the first sign of each counts.
    rows = list(csv.reader(io.StringIO("".join(table_export.to_csv(made)), newline="")))
    assert [row[1][0] for row in rows] == ["'", "'", "-"]
    assert float(rows[2][1]) == -1.5


def test_runs_csv_escapes_formulas(place: Target) -> None:
    with unit_of_work(place.engine) as db:
        run = runs.get(db, 1)
        run.name = "=HYPERLINK(1)"
        run.tags = ["@SUM(1)"]
    told = place.client.get("/runs.csv?cols=name,tags,status").text

    assert "'=HYPERLINK(1)" in told
    assert [
        cell for row in csv.reader(io.StringIO(told)) for cell in row if cell.startswith(("=", "@"))
    ] == []


@pytest.mark.parametrize(
    "name", ["x.html.jsonl", 'a"; b=.jsonl', "x\r\nA: b.jsonl", "é.jsonl", "\u202egvs.jsonl"]
)
def test_uploaded_files_are_served_as_attachments(place: Target, name: str) -> None:
    rows = b'{"prompt": "a", "completion": "b"}\n'
    sent = place.client.post(
        "/v1/files", data={"purpose": "fine-tune"}, files={"file": (name, rows)}
    )
    assert sent.status_code == 200, sent.text
    answer = place.client.get(f"/v1/files/{sent.json()['id']}/content")

    assert answer.content == rows
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["x.html", "x.svg", "x.xml", "x.xhtml", "x.js", "x.html."])
def test_upload_with_executable_file_name_is_rejected(place: Target, name: str) -> None:
    rows = b'{"prompt": "a", "completion": "b"}\n'
    answer = place.client.post("/api/v1/datasets", files={"file": (name, rows)})

    assert answer.status_code == 422


@pytest.mark.parametrize(
    "content", [b"<!doctype html><script>", b"<svg onload=a()>", b"<?xml version='1.0'?><a/>"]
)
def test_html_or_xml_content_is_rejected_as_dataset(place: Target, content: bytes) -> None:
    answer = place.client.post("/api/v1/datasets", files={"file": ("rows.jsonl", content)})

    assert answer.status_code == 422


def test_pages_cannot_be_framed(place: Target) -> None:
    for path in ("/", "/nowhere", "/api/v1/runs", "/static/css/base.css"):
        assert "frame-ancestors 'none'" in send_raw(place, path).headers["content-security-policy"]


HOSTS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "a.", "x@", "testserver.", "testserver@", "127.0.0.1.", "[::1]"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12),
    st.sampled_from(["", ":80", ":80:80", ".evil.example", "/p?x=", "#", "@evil"]),
).filter(lambda host: host.lower().rpartition(":")[0] not in {"testserver", "127.0.0.1"})


@settings(max_examples=50, deadline=None)
@given(host=HOSTS.filter(lambda host: host.lower() not in {"testserver", "127.0.0.1"}))
def test_unknown_host_header_is_rejected(place: Target, host: str) -> None:
    answer = send_raw(place, "/api/v1/health", headers=[(b"host", host.encode())])

    assert answer.status == 421


ORIGINS = st.sampled_from(
    ["null", "", "file://", "http://testserver.evil.example", "http://evil@testserver.x"]
) | st.builds(
    "https://{}".format, st.from_regex(r"[a-z]{1,8}\.example(:[0-9]{1,4})?", fullmatch=True)
)


@settings(max_examples=20, deadline=None)
@given(
    origin=ORIGINS.filter(bool),
    kind=st.sampled_from(["text/plain", "application/json", "application/x-www-form-urlencoded"]),
    method=st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]),
)
def test_cross_origin_requests_cannot_write_or_read(
    place: Target, origin: str, kind: str, method: str
) -> None:
    headers = {"Origin": origin, "Content-Type": kind, "Cookie": "studio_80=x"}
    answer = place.client.request(method, "/api/v1/runs/1", content=b"{}", headers=headers)
    read_there = place.client.get("/api/v1/runs", headers=headers)

    assert answer.status_code == 403
    assert [name for name in read_there.headers if name.startswith("access-control")] == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_json_body_with_form_content_type_is_rejected(place: Target, kind: str) -> None:
    """A form of another site can send text; JSON only after it was asked whether it may."""
    body = b'{"name": "x", "recipe": {"base_model": "starter", "dataset": "starter"}}'
    answer = place.client.post("/api/v1/runs", content=body, headers={"Content-Type": kind})

    assert answer.status_code == 422


ROUTES = [
    one for name in (*PAGES, *API) for one in load_router(name).routes if isinstance(one, Route)
]
READ = {one.path for one in ROUTES if one.methods and "GET" in one.methods}
CHANGING = sorted({one.path for one in ROUTES} - READ)


def test_get_on_write_routes_changes_nothing(place: Target) -> None:
    def state() -> tuple[str, int]:
        with read_session(place.engine) as db:
            return runs.get(db, 1).status, db.scalar(select(func.count()).select_from(Run)) or 0

    before = state()
    found = {
        path: send_raw(
            place, path.replace("{run_id}", "1").replace("{", "").replace("}", "")
        ).status
        for path in CHANGING
    }

    assert len(found) > 30
    assert {path: status for path, status in found.items() if status // 100 != 4} == {}
    assert state() == before


THERE = st.builds(
    "{}{}".format,
    st.sampled_from(["//", "/\\", "\\\\", "https:", "https://", "javascript:", "/\t/", "\n//"])
    | st.sampled_from([" //", "///", "/\\/", "http:\\\\", "data:", "", "/", "/%09/", "/a"]),
    st.text(st.characters(min_codepoint=1, max_codepoint=126), max_size=20),
)


@settings(max_examples=100, deadline=None)
@given(there=THERE)
def test_login_redirect_stays_on_this_site(there: str) -> None:
    led = urlsplit(local_path(there))

    assert (led.scheme, led.netloc, local_path(there)[:1]) == ("", "", "/")
    assert not {"\\", "\r", "\n", "\t"} & set(local_path(there))
    assert local_path(there)[1:2] not in {"/", "\\"}
