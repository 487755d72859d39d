"""Texts in the encodings people have, and bytes that are no text."""

import codecs
import io
import json
from pathlib import Path

import pytest

from studio.errors import InvalidError
from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.files.encodings import as_utf8, guess_encoding, normalise_encoding
from studio.intake.files.limits import Limits
from studio.intake.mapping import FileOptions, Mapping
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import UnreadableRow
from studio.intake.readers.json_rows import rows_in_json_lines
from tests.unit.intake.conftest import Convert, zipped

GOOD = b'{"prompt": "a", "completion": "b"}\n'
EXCEL = "prompt,completion\nQu\xe9?,Voil\xe0 \x85\n"
CHINESE = "今天天气很好，我们去公园散步吧。请问您需要什么帮助？"
TAIWANESE = "今天天氣很好，我們去公園散步吧。請問您需要什麼幫助？訂單已經發貨。"
JAPANESE = "今日は天気がいいので、公園に行きましょう。ご注文の商品は発送済みです。"
KOREAN = "오늘은 날씨가 좋으니 공원에 산책하러 갑시다. 무엇을 도와드릴까요?"
POLISH = "Dziękujemy za wiadomość. Proszę podać numer zamówienia, żebyśmy mogli sprawdzić."
RUSSIAN = "Спасибо за сообщение. Пожалуйста, укажите номер заказа, чтобы мы могли проверить."
FRENCH = "Merci pour votre message. Où êtes-vous allé hier ? Il a été vérifié à l’école."
GREEK = "Ευχαριστούμε για το μήνυμα. Παρακαλούμε δώστε τον αριθμό παραγγελίας."
TURKISH = "Mesajınız için teşekkürler. Lütfen sipariş numaranızı belirtin. Işık güzel değil."
HEBREW = "תודה על ההודעה. אנא ציינו את מספר ההזמנה כדי שנוכל לבדוק את המשלוח."
ARABIC = "شكرا على رسالتك. يرجى ذكر رقم الطلب حتى نتمكن من التحقق من الشحنة."
TEXTS = [
    *((CHINESE, name) for name in ("gbk", "gb18030", "gb2312")),
    (TAIWANESE, "big5"),
    *((JAPANESE, name) for name in ("shift_jis", "cp932", "euc_jp", "iso2022_jp")),
    *((KOREAN, name) for name in ("euc_kr", "cp949")),
    *((POLISH, name) for name in ("cp1250", "iso8859_2")),
    *((RUSSIAN, name) for name in ("cp1251", "koi8_r", "iso8859_5", "cp866", "mac_cyrillic")),
    *((FRENCH, name) for name in ("cp1252", "mac_roman")),
    *((GREEK, name) for name in ("cp1253", "iso8859_7")),
    *((TURKISH, name) for name in ("cp1254", "iso8859_9")),
    *((HEBREW, name) for name in ("cp1255", "iso8859_8")),
    *((ARABIC, name) for name in ("cp1256", "iso8859_6")),
    *((CHINESE, f"utf_{bits}_{end}") for bits in (16, 32) for end in ("le", "be")),
    *((FRENCH, f"utf_{bits}") for bits in (16, 32)),
]


def opened(content: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(content))


def in_format(text: str, kind: str) -> str:
    match kind:
        case "csv":
            return f'prompt,completion\nHello there,"{text}"\n'
        case "jsonl":
            row = {"prompt": "Hello there", "completion": text}
            return f"{json.dumps(row, ensure_ascii=False)}\n"
    return f"A first line.\n\n{text}\n"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt"])
@pytest.mark.parametrize(("text", "name"), TEXTS, ids=[name for _text, name in TEXTS])
def test_text_is_read_in_its_own_encoding(bring: Convert, text: str, name: str, kind: str) -> None:
    # What an encoding has no letter for, such as a typographic quote, is no part of the test.
    text = text.encode(name, "ignore").decode(name)
    result = bring(in_format(text, kind).encode(name), f"rows.{kind}")

    last = result.rows[-1]
    assert (last["text"] if kind == "txt" else last["messages"][-1]["content"]) == text


@pytest.mark.parametrize(("text", "name"), TEXTS, ids=[name for _text, name in TEXTS])
def test_guessed_encoding_asks_question_with_sample_text(
    tmp_path: Path, text: str, name: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(in_format(text, "csv").encode(name, "ignore"))

    seen = inspect_file(SourceFile(path=path, filename=path.name), Limits()).detected

    is_certain = name.startswith("utf_")
    assert (seen.sureness == "sure") is is_certain
    assert [text[:8] in question for question in seen.questions] == [True] * (not is_certain)


def test_short_ambiguous_text_is_guess_with_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(EXCEL.encode("cp437", "ignore"))

    seen = inspect_file(SourceFile(path=path, filename=path.name), Limits()).detected

    assert seen.sureness == "guess"
    assert len(seen.encodings) > 1


def test_encoding_is_detected_after_megabyte_of_ascii(bring: Convert) -> None:
    content = ("prompt,completion\n" + "Hi,There\n" * 120_000 + f"你好,{CHINESE}\n").encode("gbk")

    assert bring(content, "rows.csv").conversations[-1][1]["content"] == CHINESE


def test_archive_files_are_each_read_in_their_own_encoding(bring: Convert) -> None:
    files = {
        "a.csv": in_format(CHINESE, "csv").encode("gbk"),
        "b.csv": in_format(RUSSIAN, "csv").encode("cp1251"),
        "c.csv": in_format(FRENCH, "csv").encode(),
    }

    result = bring(zipped(files), "rows.zip")

    answers = [turns[1]["content"] for turns in result.conversations]
    assert answers == [CHINESE, RUSSIAN, FRENCH]


def test_chosen_encoding_overrides_detection(bring: Convert) -> None:
    mapping = Mapping(
        shape="prompt_completion",
        roles={"prompt": ["prompt"], "completion": ["completion"]},
        file=FileOptions(encoding="Latin-1"),
    )

    result = bring(in_format("Привет", "csv").encode("cp1251"), "rows.csv", mapping)

    assert result.conversations[0][1]["content"] == "Ïðèâåò"


@pytest.mark.parametrize("name", ["klingon", "base64", "idna", "rot13"])
def test_unknown_encoding_error_lists_supported_encodings(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Unknown encoding: {name}\. .* utf-8, gb18030"):
        FileOptions(encoding=name)


@pytest.mark.parametrize(
    ("written", "name"), [("GBK", "gb18030"), ("Shift-JIS", "cp932"), ("latin1", "iso8859-1")]
)
def test_encoding_name_spellings_are_normalised(written: str, name: str) -> None:
    assert normalise_encoding(written) == name


@pytest.mark.parametrize(
    "head",
    [
        b"plain",
        "é".encode(),
        codecs.BOM_UTF8 + b"a",
        "ééé".encode() + b"\xe9",
        ("x" * 65535 + "é").encode(),
    ],
)
def test_utf8_is_detected_without_guessing(head: bytes) -> None:
    found = guess_encoding(opened(head))

    assert (found.encoding, found.is_guessed) == ("utf-8", False)


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_utf16_surrogate_pairs_are_decoded(name: str) -> None:
    text = "\ufeffa 😀\n" * 50_000

    assert as_utf8(opened(text.encode(name)), name).read() == text[1:].encode()


def test_latin1_excel_csv_is_read_and_encoding_reported(bring: Convert) -> None:
    result = bring(EXCEL.encode("latin-1"), "rows.csv")

    assert [turn["content"] for turn in result.conversations[0]] == ["Qué?", "Voilà …"]
    assert result.problems == [("encoding", 0, [])]


@pytest.mark.parametrize(
    ("filename", "content", "number"),
    [
        (
            "rows.jsonl",
            '{"prompt": "ü", "completion": "é"}\n'.encode() + GOOD.replace(b"a", b"\xe9", 1) + GOOD,
            2,
        ),
        ("rows.csv", "prompt,completion\nü,é\n".encode() + b"\xe9,b\n" + b"a,b\n", 3),
        ("rows.csv", 'prompt,completion\nü,é\n"one\n'.encode() + b'\xe9",b\n' + b"a,b\n", 3),
        ("rows.jsonl", codecs.BOM_UTF16_LE + (GOOD * 2).decode().encode("utf-16-le") + b"{", 3),
    ],
)
def test_undecodable_row_is_skipped_and_reported(
    bring: Convert, filename: str, content: bytes, number: int
) -> None:
    result = bring(content, filename)

    assert (result.converted.rows, result.problems) == (2, [("not_utf8", 1, [number])])


def test_bytes_invalid_in_chosen_encoding_are_reported(bring: Convert) -> None:
    mapping = Mapping(
        shape="prompt_completion",
        roles={"prompt": ["prompt"], "completion": ["completion"]},
        file=FileOptions(encoding="gbk"),
    )
    content = "prompt,completion\n你好,世界\n".encode("gbk") + b"a,\xff\n"

    problems = bring(content, "rows.csv", mapping).problems

    assert ("not_utf8", 1, [3]) in problems


def test_text_file_named_parquet_is_rejected() -> None:
    with pytest.raises(InvalidError):
        inspect_file(SourceFile(path=Path(__file__), filename="rows.parquet"), Limits())


def test_invalid_byte_position_is_reported() -> None:
    assert list(rows_in_json_lines(io.BytesIO(b'\n{"a": "\xff"}\n'), 100)) == [
        UnreadableRow(2, ProblemCode.NOT_UTF8, "byte 0xff at position 8")
    ]
