"""Rows in another language than the others, where both are written in one script."""

import json
import random
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from studio.intake.quality.dataset_checks import check_dataset
from studio.intake.quality.findings import Finding

Row = dict[str, Any]

SENTENCES = {
    "English": (
        "The old bridge was closed last winter because the river had damaged two of its pillars.",
        "My neighbour grows tomatoes on her balcony and gives most of them away in August.",
        "If the train is late again, we should take the bus and walk the rest of the way.",
        "Nobody in the office knew how to repair the printer, so they bought a new one.",
        "She read the letter twice before she understood what her brother wanted to say.",
        "Children learn to swim faster when the water is warm and nobody is in a hurry.",
    ),
    "French": (
        "Le vieux pont a été fermé l'hiver dernier parce que la rivière avait abîmé deux piliers.",
        "Ma voisine fait pousser des tomates sur son balcon et les offre presque toutes en août.",
        "Si le train est encore en retard, nous devrions prendre le bus et finir à pied.",
        "Personne au bureau ne savait réparer l'imprimante, alors ils en ont acheté une neuve.",
        "Elle a lu la lettre deux fois avant de comprendre ce que son frère voulait dire.",
        "Les enfants apprennent à nager plus vite quand l'eau est chaude et que rien ne presse.",
    ),
    "German": (
        "Die alte Brücke wurde im letzten Winter gesperrt, weil der Fluss Pfeiler beschädigte.",
        "Meine Nachbarin zieht Tomaten auf ihrem Balkon und verschenkt die meisten im August.",
        "Wenn der Zug wieder zu spät kommt, nehmen wir den Bus und gehen den Rest zu Fuß.",
        "Niemand im Büro wusste, wie man den Drucker repariert, also kauften sie einen neuen.",
    ),
    "Spanish": (
        "El puente viejo se cerró el invierno pasado porque el río había dañado dos pilares.",
        "Mi vecina cultiva tomates en su balcón y regala casi todos en el mes de agosto.",
        "Si el tren vuelve a llegar tarde, tomaremos el autobús y haremos el resto a pie.",
    ),
    "Polish": (
        "Stary most zamknięto zeszłej zimy, ponieważ rzeka uszkodziła dwa jego filary.",
        "Moja sąsiadka uprawia pomidory na balkonie i w sierpniu rozdaje większość z nich.",
    ),
    "Russian": (
        "Старый мост закрыли прошлой зимой, потому что река повредила две опоры.",
        "Моя соседка выращивает помидоры на балконе и почти все раздаёт в августе.",
        "Если поезд снова опоздает, мы поедем на автобусе и пройдём остаток пути пешком.",
        "Никто в конторе не знал, как починить принтер, поэтому купили новый.",
        "Она дважды прочла письмо, прежде чем поняла, что хотел сказать её брат.",
        "Дети учатся плавать быстрее, когда вода тёплая и никто никуда не спешит.",
    ),
    "Ukrainian": (
        "Старий міст закрили минулої зими, тому що річка пошкодила дві його опори.",
        "Моя сусідка вирощує помідори на балконі й майже всі роздає в серпні.",
    ),
}

CODE = '''def total(rows: list[dict[str, int]], name: str) -> int:
    """Return the sum of a column, or zero if the column is not there at all."""
    return sum(row.get(name, 0) for row in rows if row)  # rows may be empty
'''


def pair(question: str, answer: str) -> Row:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns}


def many(language: str) -> list[Row]:
    return [pair(*two) for two in permutations(SENTENCES[language], 2)]


def one(language: str) -> Row:
    return pair(*SENTENCES[language][:2])


@pytest.fixture
def found(tmp_path: Path) -> Any:  # noqa: ANN401 -- a function of rows
    def look(rows: list[Row], held: list[Row] | None = None) -> list[Finding]:
        paths = [tmp_path / "train.jsonl", tmp_path / "validation.jsonl"]
        for path, part in zip(paths, (rows, held or []), strict=True):
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part)
            path.write_text(text, encoding="utf-8")
        told = check_dataset(paths[0], paths[1] if held else None).findings
        return [one for one in told if one.code == "other_language"]

    return look


@pytest.mark.parametrize(
    ("main", "other"),
    [
        ("English", "French"),
        ("English", "German"),
        ("English", "Polish"),
        ("French", "English"),
        ("French", "Spanish"),
        ("Russian", "Ukrainian"),
    ],
)
def test_row_in_other_language_is_reported(found: Any, main: str, other: str) -> None:  # noqa: ANN401 -- see above
    (told,) = found([*many(main), one(other), *many(main)])
    assert (told.message, told.count, told.rows) == (
        f"Some rows seem to be in {other}; the others are in {main}",
        1,
        [31],
    )


def test_most_frequent_other_language_is_named(found: Any) -> None:  # noqa: ANN401 -- see above
    german = pair(*SENTENCES["German"][2:])
    (told,) = found([*many("English"), one("Spanish"), one("German"), german])
    assert (told.message, told.rows) == (
        "Some rows seem to be in German or other languages; the others are in English",
        [31, 32, 33],
    )


def test_plain_text_rows_are_checked_for_language(found: Any) -> None:  # noqa: ANN401 -- see above
    texts = [" ".join(two) for two in permutations(SENTENCES["English"], 2)]
    (told,) = found([{"text": text} for text in [" ".join(SENTENCES["French"]), *texts]])
    assert told.rows == [1]


def test_train_and_validation_are_checked_separately(found: Any) -> None:  # noqa: ANN401 -- see above
    (told,) = found(many("English"), [*many("French"), one("English")])
    assert (told.part, told.rows) == ("validation", [31])


def test_row_order_does_not_affect_findings(found: Any) -> None:  # noqa: ANN401 -- see above
    strange = [one("French"), one("German"), pair(*SENTENCES["German"][2:])]
    rows = [
        pair(f"{row['messages'][0]['content']} {i}", row["messages"][1]["content"])
        for i in range(20)
        for row in many("English")
    ]
    rows += strange
    for seed in range(4):
        random.Random(seed).shuffle(rows)  # noqa: S311 -- an order, no secret
        (told,) = found(rows)
        assert (
            told.message
            == "Some rows seem to be in German or other languages; the others are in English"
        )
        assert told.rows == sorted(rows.index(row) + 1 for row in strange)


@pytest.mark.parametrize("share", [7, 15, 30])
def test_many_rows_in_second_language_are_not_reported(found: Any, share: int) -> None:  # noqa: ANN401 -- see above
    assert found([*many("English")[:24], *many("French")[:share]]) == []


@pytest.mark.parametrize(
    "row",
    [
        pair("Translate this into French: " + SENTENCES["English"][0], SENTENCES["French"][0]),
        pair("Say it in English. " + " ".join(SENTENCES["French"]), SENTENCES["English"][0]),
        pair(" ".join(SENTENCES["French"]) + "\nWhich language is this?", "Le français."),
        pair(SENTENCES["English"][0], " ".join(SENTENCES["German"])),
        pair(" ".join(SENTENCES["Spanish"]), SENTENCES["English"][1]),
    ],
)
def test_language_exercise_rows_are_not_reported(found: Any, row: Row) -> None:  # noqa: ANN401 -- see above
    assert found([*many("English"), row]) == []


@pytest.mark.parametrize(
    "row",
    [
        pair("Et toi ?", "Moi aussi, merci."),
        {"text": CODE},
        {"text": f"```python\n{CODE}```"},
        {"text": json.dumps({"name": "Anna", "age": 31, "roles": ["admin", "owner"]} | {"x": 1})},
        {"text": " ".join(f"https://example.org/a/{i}/lorem/ipsum.html" for i in range(9))},
        {"text": " ".join(str(i * 7919) for i in range(60))},
        {"text": "SELECT name, count(*) FROM people WHERE age > 30 GROUP BY name ORDER BY 2;"},
    ],
)
@pytest.mark.parametrize("main", ["English", "French"])
def test_non_prose_and_short_rows_are_not_reported(found: Any, main: str, row: Row) -> None:  # noqa: ANN401 -- see above
    assert found([*many(main), row]) == []


def test_small_dataset_gets_no_language_findings(found: Any) -> None:  # noqa: ANN401 -- see above
    assert found([*many("English")[:18], one("French")]) == []


def test_row_in_other_script_gives_no_language_finding(found: Any) -> None:  # noqa: ANN401 -- see above
    assert found([*many("English"), one("Russian")]) == []


@pytest.mark.slow
def test_studio_startup_does_not_load_language_model() -> None:
    asked = """
import sys, studio.web.app
from pathlib import Path
from tempfile import TemporaryDirectory
from studio.services.operations import home
from studio.settings import Settings
with TemporaryDirectory() as scratch:
    home.open_home(Settings(home=Path(scratch) / "home")).dispose()
print([name for name in sys.modules if name.startswith("py3langid")])
"""
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
