"""A template that escapes Jinja's sandbox, and a file that takes over its reader, reach nothing.

Both run as native Python in the process that a stranger's template or file gets, with everything
loaded that the attacks use, so that the kernel refuses and not a missing module.
"""

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from studio.errors import InvalidError
from studio.graders.python_process import seal_status
from studio.intake.conversion.converter import SourceFile
from studio.intake.conversion.job import CONVERSION_JOB_ADAPTER, ConversionJob
from studio.intake.files.limits import Limits
from studio.processes.seal import WALLS
from studio.protocols import tokenizer_service
from studio.protocols.tokenizer_service import PackingWindow, TokenizerRequest
from studio.services.models import service_clients
from studio.settings import Settings
from studio.training.data.template_process import TemplateFailure, TemplateProcess
from studio.worker.socket_services import SocketService
from tests.security.escaped_templates import TEMPLATE
from tests.security.grader_attacks import MODULES, Attack, attacks
from tests.support.tokenizer_services import CHATML, run_tokenizer_service, write_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(seal_status().reason), reason=seal_status().text),
]

ELSEWHERE = {"signal: environment", "signal: a file left open"}
"""A forked child has its parent's environment, in which no secret is: `test_secrets.py`. Which
files are open is tested below."""
COPIED = "process: dup"
"""A reader may copy its own descriptors: mapping a file does."""
ATTACKS = [attack for attack in attacks() if attack.name not in ELSEWHERE]
ESCAPED = 1.0

PRELUDE = f"""#
import json, math, re, sys
for name in {MODULES!r}:
    exec(f"import {{name}}")
libc = ctypes.CDLL(None, use_errno=True)
def attack(item):
CODE
try:
    result = attack({{}})
except Exception as error:
    result = str(error)
"""
OPEN_FILES = """
found = {}
for one in range(300):
    try: os.lseek(one, 0, os.SEEK_CUR); found[one] = "file"
    except OSError as error:
        if error.errno != 9: found[one] = "pipe"
return json.dumps(found)
"""


@dataclass(slots=True)
class Surroundings:
    """What attacks are after: a file, this process, and a port that it listens on."""

    canary: Path
    listener: socket.socket

    def fill(self, code: str) -> str:
        for name, value in (
            ("CANARY", str(self.canary)),
            ("PARENT", str(os.getpid())),
            ("PORT", str(self.listener.getsockname()[1])),
        ):
            code = code.replace(name, value)
        return PRELUDE.replace("CODE", textwrap.indent(code, "    "))

    def assert_unharmed(self) -> None:
        assert {path.name for path in self.canary.iterdir()} == {"secret"}
        assert (self.canary / "secret").read_text() == "canary"
        with pytest.raises(BlockingIOError):
            self.listener.accept()


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    canary = tmp_path_factory.mktemp("canary")
    (canary / "secret").write_text("canary")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield Surroundings(canary, server)


@dataclass(slots=True)
class Templates:
    """A tokenizer service whose templates can do what Python can."""

    settings: Settings
    service: SocketService
    model: Path

    def run(self, program: str, window: PackingWindow | None = None) -> str:
        """Return what a program in a template leaves in `result`, or its error in words."""
        turns = [{"role": "user", "content": program}, {"role": "assistant", "content": "Yo"}]
        request = TokenizerRequest(
            kind="tokens", model=str(self.model), row={"messages": turns}, number=1, window=window
        )
        try:
            tokens = service_clients.tokenize_row(self.settings, request).tokens
        except InvalidError as error:
            return error.message
        text = "".join(token.text for token in tokens)
        return text[2:].partition(">>")[0] if text.startswith("<<") else text


def _serve(folder: Path, walls: tuple[str, ...]) -> Iterator[Templates]:
    settings = Settings(home=folder)
    model = write_model(folder / "model", TEMPLATE + CHATML)
    with run_tokenizer_service(settings) as service:
        service.module, service.args = "tests.security.escaped_templates", walls
        yield Templates(settings, service, model)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Templates]:
    for served in _serve(tmp_path_factory.mktemp("sealed"), WALLS):
        served.run("Hi")
        process = served.service.child
        yield served
        assert served.service.child is process, "It was started again."
        assert served.service.is_running


@pytest.fixture(scope="module")
def unsealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Templates]:
    """Return the service as on a kernel that cannot seal."""
    yield from _serve(tmp_path_factory.mktemp("unsealed"), ())


@pytest.fixture(scope="module")
def reader_results(
    around: Surroundings, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, object]:
    """Run all attacks in the process that checks a file."""
    programs = {attack.name: around.fill(attack.code) for attack in ATTACKS}
    programs["open files"] = around.fill(OPEN_FILES)
    return check(tmp_path_factory.mktemp("file"), programs, WALLS)


def check(folder: Path, programs: dict[str, str], walls: tuple[str, ...]) -> dict[str, object]:
    path = folder / "rows.parquet"
    path.write_bytes(b"PAR1" + json.dumps(programs).encode() + b"PAR1")
    job = ConversionJob(
        source=SourceFile(path=path, filename=path.name), mapping=None, limits=Limits()
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.exploited_reader", *walls],
        input=CONVERSION_JOB_ADAPTER.dump_json(job),
        capture_output=True,
        check=True,
    )
    results: dict[str, object] = json.loads(done.stdout)
    return results


def test_there_are_enough_attacks() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) > 400


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_escaped_template_reaches_nothing(
    templates: Templates, around: Surroundings, attack: Attack
) -> None:
    assert templates.run(around.fill(attack.code)) != str(ESCAPED)
    around.assert_unharmed()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_exploited_reader_reaches_nothing(
    reader_results: dict[str, object], around: Surroundings, attack: Attack
) -> None:
    assert attack.name == COPIED or reader_results[attack.name] != ESCAPED
    around.assert_unharmed()


def start_template(walls: tuple[str, ...]) -> TemplateProcess:
    """Return a template that can do what Python can, as a run renders it."""
    module = "tests.security.escaped_template_child"
    return TemplateProcess(TEMPLATE + CHATML, {}, walls=walls, module=module)


def run_in(process: TemplateProcess, program: str) -> str:
    """Return what a program in a template leaves in `result`, or its error in words."""
    try:
        (text,), _ = process.render([[{"role": "user", "content": program}]])
    except TemplateFailure as error:
        return error.reason
    return text[2:].partition(">>")[0] if text.startswith("<<") else text


@pytest.fixture(scope="module")
def rendering() -> Iterator[TemplateProcess]:
    process = start_template(WALLS)
    yield process
    assert "Hi" in run_in(process, "Hi")
    process.close()


@pytest.mark.parametrize("attack", list(attacks()), ids=lambda attack: attack.name)
def test_escaped_template_of_a_run_reaches_nothing(
    rendering: TemplateProcess, around: Surroundings, attack: Attack
) -> None:
    assert run_in(rendering, around.fill(attack.code)) != str(ESCAPED)
    around.assert_unharmed()


def test_template_of_a_run_has_two_pipes_open(
    rendering: TemplateProcess, around: Surroundings
) -> None:
    found = json.loads(run_in(rendering, around.fill(OPEN_FILES)))

    assert found == {"0": "pipe", "1": "pipe", "2": "file"}  # 2 is /dev/null.


LIES = {
    "another number": 'b\'{"id": 9, "text": "no"}\\n\'',
    "no JSON": "b'no\\n'",
    "no object": "b'[]\\n'",
    "no text": 'b\'{"id": 1, "text": 7}\\n\'',
    "no spans": 'b\'{"id": 1, "text": "", "spans": [[-1, true]]}\\n\'',
    "nested": "b'[' * 10**5 + b'\\n'",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_template_of_a_run_that_writes_what_is_no_reply_is_stopped(
    around: Surroundings, lie: str
) -> None:
    process = start_template(WALLS)
    assert "Hi" in run_in(process, "Hi")

    told = run_in(process, around.fill(f"os.write(1, {lie}); return 1.0"))

    assert told == "it wrote what is no text and was stopped"
    assert "Hi" in run_in(process, "Hi")


def test_template_of_a_run_that_floods_is_stopped(around: Surroundings) -> None:
    process = start_template(WALLS)

    told = run_in(process, around.fill("while True: os.write(1, b'x' * 2**16)"))

    assert told == "it wrote too much and was stopped"


def test_template_of_a_run_that_ends_its_process_fails(around: Surroundings) -> None:
    process = start_template(WALLS)
    assert "Hi" in run_in(process, "Hi")

    assert "ended its process" in run_in(process, around.fill("os._exit(0)"))
    assert "Hi" in run_in(process, "Hi")


def test_template_of_a_new_model_is_sealed_too(templates: Templates, around: Surroundings) -> None:
    """The child that loads a tokenizer seals itself after that."""
    known, templates.model = templates.model, templates.model.parent / "new"
    write_model(templates.model, TEMPLATE + CHATML)
    try:
        told = templates.run(around.fill("open('CANARY/secret').read(); return 1.0"))
    finally:
        templates.model = known

    assert "Operation not permitted" in told


def test_template_has_its_pipe_the_log_and_rows_open(
    templates: Templates, around: Surroundings, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    rows.write_text(json.dumps({"messages": turns}) + "\n")
    window = PackingWindow(path=str(rows), start=0, rows=1)

    alone = json.loads(templates.run(around.fill(OPEN_FILES)))
    packed = json.loads(templates.run(around.fill(OPEN_FILES), window))

    assert sorted(alone.values()) == ["file", "file", "file", "pipe"]  # 0 and 1 are /dev/null.
    assert sorted(packed.values()) == ["file", "file", "file", "file", "pipe"]


def test_reader_has_its_file_and_room_open(reader_results: dict[str, object]) -> None:
    found = json.loads(str(reader_results["open files"]))

    assert sorted(kind for kind in found.values() if kind != "pipe") == ["file", "file"]


def test_template_cannot_change_what_the_log_says(
    templates: Templates, around: Surroundings
) -> None:
    templates.run(around.fill("os.write(2, b'first\\n')"))
    templates.run(around.fill("os.lseek(2, 0, 0); os.write(2, b'second\\n')"))
    told = templates.service.socket_path.with_suffix(".log").read_text()

    assert told.index("first") < told.index("second")


def test_500_rows_are_rendered_after_all_attacks(
    templates: Templates, around: Surroundings
) -> None:
    program = around.fill("open('CANARY/secret').read(); return 1.0")
    told = [templates.run(program if number % 5 == 0 else "Hi") for number in range(625)]

    assert {one for one in told if "Hi" in one} == {
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
    }
    assert sum("Hi" in one for one in told) == 500
    assert all("Operation not permitted" in one for one in told[::5])


def test_attacks_work_without_seal(
    templates: Templates, unsealed: Templates, around: Surroundings, tmp_path: Path
) -> None:
    """Otherwise, they would show nothing. Templates are still answered without a seal."""
    assert "Hi" in unsealed.run("Hi")
    shown = {
        name: around.fill(code)
        for name, code in {
            "read": "open('CANARY/secret').read(); return 1.0",
            "environment of parent": "open('/proc/PARENT/environ').read(); return 1.0",
            "socket": "socket.socket(); return 1.0",
            "kill parent": "os.kill(PARENT, 0); return 1.0",
            "fork": "pid = os.fork()\nif pid == 0: os._exit(0)\nreturn 1.0",
            "machine code": "mmap.mmap(-1, 4096, prot=7); return 1.0",
            "owner of a pipe": "fcntl.fcntl(2, fcntl.F_SETOWN, os.getpid()); return 1.0",
            "memfd": "os.memfd_create('x'); return 1.0",
            "exec": "return float(os.posix_spawn('/bin/true', ['true'], {}) > 0)",
        }.items()
    }
    alone = check(tmp_path, shown, ())
    of_a_run, sealed = start_template(()), start_template(WALLS)

    for name, program in shown.items():
        assert templates.run(program) != str(ESCAPED), name
        assert unsealed.run(program) == str(ESCAPED), name
        assert alone[name] == ESCAPED, name
        assert run_in(sealed, program) != str(ESCAPED), name
        assert name in {"fork", "exec"} or run_in(of_a_run, program) == str(ESCAPED), name


def test_each_wall_keeps_files_from_templates_without_the_other(
    around: Surroundings, tmp_path: Path
) -> None:
    for wall in WALLS:
        for served in _serve(tmp_path / wall, (wall,)):
            told = served.run(around.fill("open('CANARY/secret').read(); return 1.0"))
            assert told != str(ESCAPED)
            assert "not permitted" in told or "denied" in told
            assert tokenizer_service.socket_path(served.settings.home).exists()
        told = run_in(start_template((wall,)), around.fill("open('CANARY/secret').read()"))
        assert "not permitted" in told or "denied" in told
