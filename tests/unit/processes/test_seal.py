"""The filter of system calls, followed as the kernel does, for machines that are not here."""

import struct

import pytest

from studio.processes.seal import CALLS, CONDITIONS, PROFILES, Profile, seccomp_program

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050001
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 1 << 30


def follow(program: list[bytes], number: int, audit: int, arguments: tuple[int, ...] = ()) -> int:
    """Return the verdict of a filter on a system call."""
    data = struct.pack("IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    place = accumulator = 0
    while True:
        code, if_equal, if_not, value = struct.unpack("HBBI", program[place])
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("I", data, value)
        elif code == 0x15:
            place += if_equal if accumulator == value else if_not
        elif code == 0x45:
            place += if_equal if accumulator & value else if_not
        else:
            assert code == 0x06
            return int(value)


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_filter_allows_what_is_listed_and_nothing_else(profile: Profile, machine: str) -> None:
    program = seccomp_program(profile, machine)
    allowed = {
        CALLS[name][machine] for name in profile.calls if machine in CALLS[name] and name != "fcntl"
    }
    passed = {
        number
        for number in (*range(1000), *range(X32, X32 + 1000))
        if follow(program, number, AUDIT[machine]) == ALLOW
    }

    assert passed == allowed
    assert follow(program, 2**31, AUDIT[machine]) == REFUSE


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_call_is_allowed_only_with_its_argument(profile: Profile, machine: str) -> None:
    program = seccomp_program(profile, machine)
    expected = {
        "fcntl": {1030} if "fcntl" in profile.calls else set(),
        "mmap": {value for value in range(2000) if not value & 4},
        "mprotect": {value for value in range(2000) if not value & 4},
    }

    assert set(CONDITIONS) == set(expected)
    for name, condition in CONDITIONS.items():
        for other in (0, 1030):  # What the other arguments are does not matter.
            before = (other,) * condition.place
            assert expected[name] == {
                value
                for value in range(2000)
                if follow(program, CALLS[name][machine], AUDIT[machine], (*before, value, other))
                == ALLOW
            }


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_calls_of_other_architectures_end_the_process(profile: Profile, machine: str) -> None:
    program = seccomp_program(profile, machine)
    others = [0x40000003, *(audit for name, audit in AUDIT.items() if name != machine)]

    assert {follow(program, number, audit) for number in range(500) for audit in others} == {KILL}


def test_every_call_has_its_own_number() -> None:
    for machine in AUDIT:
        numbers = [call[machine] for call in CALLS.values() if machine in call]
        assert len(set(numbers)) == len(numbers) > 25


def test_every_call_is_allowed_by_some_profile() -> None:
    assert set(CALLS) == {name for profile in PROFILES for name in profile.calls}


def test_no_profile_opens_a_path_or_starts_anything() -> None:
    forbidden = ("open", "stat", "exec", "fork", "clone", "socket", "kill", "prctl", "ioctl", "dup")

    assert [name for name in CALLS if name != "fstat" and any(it in name for it in forbidden)] == []
