"""Programs of strangers in a sealed process: none gets out, and the next answer is graded."""

import os
import platform
import select
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from studio.graders.grades import GradeError
from studio.graders.python_process import PythonLimits, PythonPolicy, PythonProcess, seal_status
from studio.processes.seal import CALLS, GRADER, WALLS
from tests.security.grader_attacks import (
    ENDLESS,
    FEW_MODULES,
    LIST,
    MODULES,
    READ,
    WRITE,
    Attack,
    attacks,
    disruptions,
)

ATTACKS, DISRUPTIONS = list(attacks()), list(disruptions())
SEALED = pytest.mark.skipif(bool(seal_status().reason), reason=seal_status().text)
pytestmark = SEALED

SOURCE = """
import sys
for name in MODULES:
    exec(f"import {name}")
import json, math, re
libc = ctypes.CDLL(None, use_errno=True)

def grade(sample, item):
    if "code" not in item:
        return 0.5
    space = dict(globals())
    exec(item["code"], space)
    return space["attack"](item)
"""
PATIENT, HASTY = PythonLimits(seconds=30, start_seconds=60), PythonLimits(seconds=0.3)
ESCAPED = 1.0
FLAGS = {"python_grader_server_error", "python_grader_runtime_error"}


@dataclass(slots=True)
class Target:
    """A sealed process, and what is around it."""

    process: PythonProcess
    canary: Path
    listener: socket.socket

    def attack(self, code: str, limits: PythonLimits = PATIENT) -> float | str:
        """Run an attack; return its score, or the flag of its error."""
        self.process.start()
        for name, value in (
            ("CANARY", str(self.canary)),
            ("PARENT", str(os.getpid())),
            ("PORT", str(self.listener.getsockname()[1])),
        ):
            code = code.replace(name, value)
        self.process.limits = replace(limits, start_seconds=60)
        # The process counts its requests; a program that forges a reply would find the number.
        item = {
            "code": "def attack(item):\n" + textwrap.indent(code, "    "),
            "id": self.process._count + 1,
        }
        try:
            return self.process.grade({}, item)
        except GradeError as error:
            return error.flag
        finally:
            self.process.limits = PATIENT

    def assert_unharmed(self) -> None:
        """See that the process grades the next answer, and that nothing around it has changed."""
        assert self.process.grade({}, {}) == 0.5
        assert {path.name for path in self.canary.iterdir()} == {"secret"}
        assert (self.canary / "secret").read_text() == "canary"
        with pytest.raises(BlockingIOError):
            self.listener.accept()


def make_process(
    modules: tuple[str, ...] = MODULES, walls: tuple[str, ...] = WALLS
) -> PythonProcess:
    source = f"MODULES = {modules!r}\n{SOURCE}"
    policy: PythonPolicy = "sealed" if "seccomp" in walls else "trusted"
    return PythonProcess(source, policy, limits=PATIENT, modules=modules, walls=walls)


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


@pytest.fixture(scope="module")
def target(listener: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    canary = tmp_path_factory.mktemp("canary")
    (canary / "secret").write_text("canary")
    with make_process() as process:
        yield Target(process, canary, listener)


@pytest.fixture(scope="module")
def quick_target(target: Target) -> Iterator[Target]:
    """Return a process that starts quickly, for what ends it."""
    with make_process(FEW_MODULES) as process:
        yield replace(target, process=process)


def test_there_are_enough_attacks() -> None:
    names = [attack.name for attack in (*ATTACKS, *DISRUPTIONS)]

    assert len(set(names)) == len(names) > 200


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_fails_and_next_answer_is_graded(target: Target, attack: Attack) -> None:
    assert target.attack(attack.code) != ESCAPED
    target.assert_unharmed()


@pytest.mark.parametrize("attack", DISRUPTIONS, ids=lambda attack: attack.name)
def test_disruption_gives_no_score_and_next_answer_is_graded(
    quick_target: Target, attack: Attack
) -> None:
    assert quick_target.attack(attack.code) in {0.0, *FLAGS}
    quick_target.assert_unharmed()


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_program_is_stopped(quick_target: Target, name: str) -> None:
    assert quick_target.attack(ENDLESS[name], HASTY) in FLAGS
    quick_target.assert_unharmed()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_every_other_system_call_is_refused(target: Target) -> None:
    """Call all numbers, also those of the x32 ABI, with arguments that none accepts.

    Linux 6.12 lets 335 and 336 past every filter: it makes them itself, for uprobes of its
    administrator, and ends or refuses a process that calls them.
    """
    allowed = [335, 336, *(CALLS[name]["x86_64"] for name in GRADER.calls)]
    code = f"""
    allowed, passed = {allowed}, []
    for number in range(700):
        for offset in (0, 1 << 30):
            if number in allowed and not offset:
                continue
            ctypes.set_errno(0)
            result = libc.syscall(number + offset, -1, -1, -1, -1, -1, -1)
            if result != -1 or ctypes.get_errno() != 1:
                passed.append(number + offset)
    if passed:
        raise ValueError(passed)
    return 0.25
    """

    assert target.attack(textwrap.dedent(code)) == 0.25
    target.assert_unharmed()


@pytest.mark.parametrize("wall", WALLS)
def test_each_wall_keeps_files_without_the_other(target: Target, wall: str) -> None:
    """Landlock does not hide that a file exists; what opens it, it refuses."""
    shown = {"stat", "lstat", "exists", "access", "libc.access", "statvfs", "getxattr", "O_PATH"}
    with make_process(walls=(wall,)) as process:
        alone = replace(target, process=process)
        for way, code in READ.items():
            if wall == "landlock" and way in shown:
                continue
            assert alone.attack(code.replace("WHERE", "'CANARY/secret'")) != ESCAPED, way
        assert alone.attack(LIST["listdir"].replace("WHERE", "'CANARY'")) != ESCAPED
        for way in ("open", "append", "mkdir", "unlink", "rename"):
            assert alone.attack(WRITE[way].replace("WHERE", "'CANARY'")) != ESCAPED, way
        alone.assert_unharmed()


def test_attacks_work_without_walls(target: Target, tmp_path: Path) -> None:
    """Otherwise, they would show nothing."""
    folder = tmp_path / "open"
    with make_process(walls=()) as process:
        open_ = Target(process, folder, target.listener)
        for way, code in {**READ, **LIST, **WRITE}.items():
            if way in {"copyfile", "dlopen", "chroot", "libc.system"}:
                continue  # No library; the process keeps its root; no score tells of a program.
            folder.mkdir(exist_ok=True)
            (folder / "secret").write_text("canary")
            path = "CANARY" if way not in READ or code in WRITE.values() else "CANARY/secret"
            assert open_.attack(code.replace("WHERE", repr(path))) == ESCAPED, way
            for left in folder.glob("new*"):
                left.rmdir() if left.is_dir() and not left.is_symlink() else left.unlink()


def test_process_is_refused_where_it_cannot_be_sealed() -> None:
    process = PythonProcess("def grade(sample, item): return 1", "sealed", walls=("landlock",))
    with process, pytest.raises(GradeError) as raised:
        process.grade({}, {})

    assert (raised.value.flag, raised.value.kind) == ("python_grader_server_error", "unsealed")
    assert "STUDIO_PYTHON_GRADERS=trusted" in raised.value.message


def test_liar_falsifies_only_its_own_score() -> None:
    """A program can change the process that it runs in: another one does not notice."""
    lie = """
import gc, json, sys
def grade(sample, item):
    for one in gc.get_objects():
        if isinstance(one, dict) and one.get("__name__") == "studio.graders.python_child":
            one["_to_number"] = lambda value: 1.0
    return 0.0
"""
    honest = "def grade(sample, item): return 0.25"
    limits = PythonLimits(seconds=30)
    with (
        PythonProcess(lie, "sealed", limits=limits) as liar,
        PythonProcess(honest, "sealed", limits=limits) as other,
    ):
        scores = [(liar.grade({}, {}), other.grade({}, {})) for _ in range(3)]

    assert [score for _, score in scores] == [0.25] * 3


def test_process_ends_with_a_killed_parent() -> None:
    """Kill a studio while a program loops: the kernel ends the program."""
    code = """
from studio.graders.python_process import PythonProcess
process = PythonProcess("def grade(sample, item):\\n    while item: pass\\n    return 1", "sealed")
process.grade({}, 0)
print(process._process.pid, flush=True)
process.limits = process.limits.__class__(seconds=600)
process.grade({}, 1)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([child], [], [], 60)[0] == [child]
    finally:
        os.close(child)
