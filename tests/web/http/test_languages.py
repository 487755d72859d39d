"""In which language pages are written, and how it is chosen."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.settings import Settings
from studio.web import study_conclusions
from studio.web.i18n import formatting, locale, number_i18n, translation
from tests.support.factories import make_finished_run, make_running
from tests.support.page_reader import parse_page
from tests.support.visitors import make_visitors


@pytest.fixture
def in_chinese() -> Iterator[None]:
    locale.set_language("zh-Hans")
    yield
    locale.set_language(locale.ENGLISH)


def language_of(client: TestClient, **headers: str) -> str:
    page = client.get("/settings", headers=headers).text
    return page.partition('<html lang="')[2].partition('"')[0]


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh-Hans"),
        ("zh", "zh-Hans"),
        ("zh-Hans-SG", "zh-Hans"),
        ("en-GB,zh;q=0.9", "en"),
        ("zh;q=0.2,en;q=0.7", "en"),
        ("fr,zh-CN;q=0.5,en;q=0.3", "zh-Hans"),
        ("zh-TW,en;q=0.5", "en"),
        ("zh;q=0", "en"),
        ("de, *;q=0.1", "en"),
        ("zh;q=many, ;;;, \u00ff", "en"),
        ("", "en"),
    ],
)
def test_preferred_browser_language_is_used(accepted: str, language: str) -> None:
    assert locale.choose_language({"accept-language": accepted}) == language


def test_constant_of_a_template_follows_the_language_of_each_request(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        make_running(db)
    cards = [
        parse_page(client.get("/", headers={"Accept-Language": tag}).text).one("article").text
        for tag in ("en", "zh", "en")
    ]

    assert ["Training loss" in card for card in cards] == [True, False, True]
    assert ["训练损失" in card for card in cards] == [False, True, False]


def test_default_language_is_english(client: TestClient) -> None:
    assert language_of(client) == "en"


def test_chosen_language_overrides_browser(client: TestClient) -> None:
    answer = client.post(
        "/language",
        data={"language": "zh-Hans"},
        headers={"Referer": "http://testserver/queue?a=1"},
        follow_redirects=False,
    )

    assert answer.status_code == 303
    assert answer.headers["location"] == "/queue?a=1"
    assert language_of(client, **{"Accept-Language": "en"}) == "zh-Hans"


def test_language_choice_does_not_redirect_to_other_sites(client: TestClient) -> None:
    answer = client.post(
        "/language",
        data={"language": "en"},
        headers={"Referer": "http://elsewhere.example//evil.example"},
        follow_redirects=False,
    )

    assert answer.headers["location"] == "/"


def test_unknown_language_is_rejected(client: TestClient) -> None:
    answer = client.post("/language", data={"language": "tlh"})

    assert answer.status_code == 422
    assert "This language is not available." in answer.text


def test_invalid_language_cookie_is_ignored() -> None:
    assert (
        locale.choose_language({"cookie": "language=../../etc", "accept-language": "zh"})
        == "zh-Hans"
    )


def test_pages_vary_by_language_cookie_and_htmx(client: TestClient) -> None:
    told = client.get("/settings").headers["vary"]

    assert {"Accept-Language", "Cookie", "HX-Request"} <= set(told.split(", "))


def test_api_errors_stay_in_english(client: TestClient) -> None:
    refusal = client.get("/api/v1/runs/99", headers={"Accept-Language": "zh"}).json()

    assert refusal["error"]["message"] == "Run 99 does not exist."


def test_error_pages_are_translated(client: TestClient) -> None:
    page = client.get("/runs/99", headers={"Accept-Language": "zh"})

    assert page.status_code == 404
    assert "运行 99 不存在。" in page.text


def test_sign_in_page_follows_browser_language(engine: Engine, settings: Settings) -> None:
    page = (
        make_visitors(engine, settings, "link")
        .stranger()
        .get("/", headers={"Accept-Language": "zh"})
    )

    assert page.status_code == 401
    assert "此浏览器尚未登录" in page.text


def test_language_can_be_chosen_before_sign_in(engine: Engine, settings: Settings) -> None:
    answer = (
        make_visitors(engine, settings, "accounts")
        .stranger()
        .post("/language", data={"language": "en"})
    )

    assert answer.status_code == 303
    assert answer.cookies["language"] == "en"


def test_not_found_page_is_translated(client: TestClient) -> None:
    assert "找不到 /nowhere。" in client.get("/nowhere", headers={"Accept-Language": "zh"}).text


def test_user_text_is_not_translated(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "Settings")
    page = client.get("/runs/1", headers={"Accept-Language": "zh"}).text

    assert "<h1>Settings <" in page
    assert "成功" in page


@pytest.mark.usefixtures("in_chinese")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Run 7 does not exist.", "运行 7 不存在。"),
        (
            "All answers are identical: yes",
            "所有回答都相同：yes",
        ),
        (
            "The GPU ran out of memory. Choose another precision.",
            "GPU 显存不足。请选择另一种精度。",
        ),
        ("Prompt and answer: question and answer", "提示与回答：question 和 answer"),
        ("Warm-up (steps or share)", "预热（步数或比例）"),
        ("Nobody has ever said this.", "Nobody has ever said this."),
        ("g s", "g s"),
        ("Not found: /nowhere.", "找不到 /nowhere。"),
        ("native on AMD EPYC, with float32's range.", "AMD EPYC 原生支持，范围与 float32 相同。"),
        ("", ""),
    ],
)
def test_messages_with_values_are_translated(text: str, told: str) -> None:
    assert translation.translate(text) == told


@pytest.mark.usefixtures("in_chinese")
def test_numbers_follow_language() -> None:
    assert formatting.number(1234567) == "1,234,567"
    assert formatting.metric_value(0.125, "a_share") == "12.5%"
    assert formatting.number(float("inf")) == "无穷大"
    assert formatting.setting(True) == "是"  # noqa: FBT003 -- a value of a recipe
    assert formatting.duration(200) == "3分钟 20秒"


@pytest.mark.usefixtures("in_chinese")
def test_study_conclusions_follow_language() -> None:
    assert study_conclusions.format_count(3, "seed") == "3 个种子"
    assert study_conclusions.format_memory_ratio(1.5) == "内存多 50%"


@pytest.mark.usefixtures("in_chinese")
def test_digits_are_grouped_as_babel_does() -> None:
    grouped = [formatting.number(1234567), formatting.precise(1234.5), formatting.precise(0.5)]

    assert grouped == ["1,234,567", "1,234.5", "0.5"]


@pytest.mark.usefixtures("in_chinese")
def test_dates_follow_language() -> None:
    at = datetime(2026, 11, 21, 9, 5, tzinfo=UTC)

    assert formatting.relative_time(datetime.now(UTC) - timedelta(hours=3, minutes=5)) == "3小时前"
    assert formatting.relative_time(datetime.now(UTC) + timedelta(days=2, minutes=5)) == "2天后"
    assert number_i18n.format_datetime_full(at).startswith("2026年11月21日")
    assert number_i18n.format_day_and_time(at) == "11月21日 09:05"


def test_english_uses_own_number_and_date_formats() -> None:
    assert formatting.number(1234567) == "1,234,567"
    assert formatting.duration(200) == "3 min 20 s"
    assert (
        number_i18n.format_datetime_full(datetime(2026, 11, 21, 9, 5, tzinfo=UTC))
        == "2026-11-21 09:05:00 UTC"
    )
