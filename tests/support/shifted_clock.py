"""A wall clock that is ahead or behind, for a process and all that it starts."""

import shutil
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static long ahead;

__attribute__((constructor)) static void prepare(void) {
    const char *seconds = getenv("CLOCK_AHEAD");
    ahead = seconds ? atol(seconds) : 0;
    real = dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real) prepare();
    int failed = real(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += ahead;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def missing_reason() -> str:
    """Return why no clock can be shifted here; empty if one can."""
    return "" if shutil.which("cc") else "A shifted clock needs a C compiler."


def environment(folder: Path, seconds: int) -> dict[str, str]:
    """Return the environment of a process whose clock is ahead by some seconds."""
    library = folder / "shifted_clock.so"
    if not library.exists():
        source = folder / "shifted_clock.c"
        source.write_text(_SOURCE, encoding="ascii")
        words = ["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(words, check=True, capture_output=True)
    return {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(seconds)}
