"""The filter of system calls, followed as the kernel does, for machines that are not here."""

import struct

import pytest

from studio.graders.seal import ALLOWED_CALLS, seccomp_program

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050001
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 1 << 30


def follow(program: list[bytes], number: int, audit: int) -> int:
    """Return the verdict of a filter on a system call."""
    data = struct.pack("II", number, audit)
    place = accumulator = 0
    while True:
        code, if_equal, if_not, value = struct.unpack("HBBI", program[place])
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("I", data, value)
        elif code == 0x15:
            place += if_equal if accumulator == value else if_not
        else:
            assert code == 0x06
            return int(value)


@pytest.mark.parametrize("machine", AUDIT)
def test_filter_allows_what_is_listed_and_nothing_else(machine: str) -> None:
    program = seccomp_program(machine)
    allowed = {call[machine] for call in ALLOWED_CALLS.values() if machine in call}
    passed = {
        number
        for number in (*range(1000), *range(X32, X32 + 1000))
        if follow(program, number, AUDIT[machine]) == ALLOW
    }

    assert passed == allowed
    assert follow(program, 2**31, AUDIT[machine]) == REFUSE


@pytest.mark.parametrize("machine", AUDIT)
def test_calls_of_other_architectures_end_the_process(machine: str) -> None:
    program = seccomp_program(machine)
    others = [0x40000003, *(audit for name, audit in AUDIT.items() if name != machine)]

    assert {follow(program, number, audit) for number in range(500) for audit in others} == {KILL}


def test_every_call_has_its_own_number() -> None:
    for machine in AUDIT:
        numbers = [call[machine] for call in ALLOWED_CALLS.values() if machine in call]
        assert len(set(numbers)) == len(numbers) > 25
