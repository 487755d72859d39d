"""What strangers' programs try, as a table: what is done, times the ways to do it.

Each attack is the body of a function. It returns 1.0 if it got what it wanted, and anything else,
an error included, if it did not. `CANARY` is a folder with a file `secret`; `PARENT` is the process
id of the test.
"""

import platform
from collections.abc import Iterator
from typing import NamedTuple


class Attack(NamedTuple):
    name: str
    code: str


MODULES = (
    *("asyncio", "atexit", "codecs", "concurrent.futures", "copy", "ctypes", "fcntl", "fileinput"),
    *("gc", "glob", "http.client", "io", "logging", "marshal", "mmap", "multiprocessing", "os"),
    *("pathlib", "pickle", "pty", "resource", "select", "shutil", "signal", "socket", "sqlite3"),
    *("struct", "subprocess", "tempfile", "termios", "threading", "time", "tokenize", "types"),
    *("urllib.request", "weakref", "zipfile", "array", "zlib", "multiprocessing.shared_memory"),
    *("concurrent.futures.thread", "concurrent.futures.process", "multiprocessing.popen_fork"),
)
"""Loaded before the seal, so that the kernel refuses and not a missing module."""
FEW_MODULES = (
    *(
        "copy",
        "ctypes",
        "gc",
        "marshal",
        "mmap",
        "os",
        "signal",
        "sys",
        "threading",
        "time",
        "zlib",
    ),
)
"""For what ends the process, so that the next one starts quickly."""

READ = {
    "open": "open(WHERE).read(); return 1.0",
    "io.open": "io.open(WHERE, 'rb').read(); return 1.0",
    "io.open_code": "io.open_code(WHERE).read(); return 1.0",
    "FileIO": "io.FileIO(WHERE).read(); return 1.0",
    "os.open": "os.read(os.open(WHERE, os.O_RDONLY), 9); return 1.0",
    "O_PATH": "os.open(WHERE, os.O_PATH); return 1.0",
    "pathlib": "pathlib.Path(WHERE).read_bytes(); return 1.0",
    "codecs": "codecs.open(WHERE).read(); return 1.0",
    "tokenize": "tokenize.open(WHERE).read(); return 1.0",
    "fileinput": "next(fileinput.input(WHERE)); return 1.0",
    "copyfile": "shutil.copyfile(WHERE, '/dev/stdout'); return 1.0",
    "stat": "os.stat(WHERE); return 1.0",
    "lstat": "os.lstat(WHERE); return 1.0",
    "exists": "return float(os.path.exists(WHERE))",
    "access": "return float(os.access(WHERE, os.F_OK))",
    "statvfs": "os.statvfs(WHERE); return 1.0",
    "getxattr": "os.listxattr(WHERE); return 1.0",
    "mmap": "mmap.mmap(os.open(WHERE, os.O_RDONLY), 1, prot=1, flags=2); return 1.0",
    "libc.open": "return 1.0 if libc.open(WHERE.encode(), 0) >= 0 else 0.0",
    "libc.fopen": "return 1.0 if libc.fopen(WHERE.encode(), b'r') else 0.0",
    "dlopen": "ctypes.CDLL(WHERE); return 1.0",
    "libc.access": "return 1.0 if libc.access(WHERE.encode(), 0) == 0 else 0.0",
}
"""Ways to read a file, or to learn that it exists."""

FILES = ("CANARY/secret", "/proc/self/environ", "/proc/PARENT/environ", "/etc/passwd")

LIST = {
    "listdir": "os.listdir(WHERE); return 1.0",
    "scandir": "list(os.scandir(WHERE)); return 1.0",
    "glob": "return float(bool(glob.glob(WHERE + '/*')))",
    "walk": "return float(any(names for _, _, names in os.walk(WHERE)))",
    "chdir": "os.chdir(WHERE); return 1.0",
    "chroot": "os.chroot(WHERE); return 1.0",
    "opendir": "return 1.0 if libc.opendir(WHERE.encode()) else 0.0",
}

WRITE = {
    "open": "open(WHERE + '/new', 'w'); return 1.0",
    "append": "open(WHERE + '/secret', 'a'); return 1.0",
    "os.open": "os.open(WHERE + '/new', os.O_CREAT | os.O_WRONLY); return 1.0",
    "mkdir": "os.mkdir(WHERE + '/new'); return 1.0",
    "symlink": "os.symlink('/etc', WHERE + '/new'); return 1.0",
    "link": "os.link(WHERE + '/secret', WHERE + '/new'); return 1.0",
    "mkfifo": "os.mkfifo(WHERE + '/new'); return 1.0",
    "mknod": "os.mknod(WHERE + '/new'); return 1.0",
    "unlink": "os.unlink(WHERE + '/secret'); return 1.0",
    "rename": "os.rename(WHERE + '/secret', WHERE + '/new'); return 1.0",
    "truncate": "os.truncate(WHERE + '/secret', 0); return 1.0",
    "chmod": "os.chmod(WHERE + '/secret', 0o777); return 1.0",
    "chown": "os.chown(WHERE + '/secret', 1, 1); return 1.0",
    "utime": "os.utime(WHERE + '/secret'); return 1.0",
    "rmtree": "shutil.rmtree(WHERE); return 1.0",
    "tempfile": "tempfile.TemporaryFile(dir=WHERE); return 1.0",
    "mkdtemp": "tempfile.mkdtemp(dir=WHERE); return 1.0",
    "sqlite3": "sqlite3.connect(WHERE + '/new'); return 1.0",
    "logging": "logging.FileHandler(WHERE + '/new'); return 1.0",
    "libc.creat": "return 1.0 if libc.creat(WHERE.encode() + b'/new', 511) >= 0 else 0.0",
    "libc.system": "libc.system(b'touch ' + WHERE.encode() + b'/new'); return 0.0",
    "unix socket": "socket.socket(socket.AF_UNIX).bind(WHERE + '/new'); return 1.0",
}

FAMILIES = {
    "AF_UNIX": 1,
    "AF_INET": 2,
    "AF_INET6": 10,
    "AF_NETLINK": 16,
    "AF_PACKET": 17,
    "AF_CAN": 29,
    "AF_BLUETOOTH": 31,
    "AF_ALG": 38,
    "AF_VSOCK": 40,
    "AF_XDP": 44,
}
SOCKET = {
    "socket": "socket.socket(FAMILY, KIND); return 1.0",
    "socketpair": "socket.socketpair(FAMILY, KIND); return 1.0",
    "libc.socket": "return 1.0 if libc.socket(FAMILY, KIND, 0) >= 0 else 0.0",
}
NETWORK = {
    "create_connection": "socket.create_connection(('127.0.0.1', PORT), 1); return 1.0",
    "getaddrinfo": "socket.getaddrinfo('localhost', 80); return 1.0",
    "urlopen": "urllib.request.urlopen('http://127.0.0.1:PORT'); return 1.0",
    "http.client": "http.client.HTTPConnection('127.0.0.1', PORT).connect(); return 1.0",
    "asyncio": "asyncio.run(asyncio.sleep(0)); return 1.0",
    "epoll": "select.epoll(); return 1.0",
    "file descriptor": "socket.socket(fileno=1); return 1.0",
    "gethostname": "socket.gethostname(); return 1.0",
}

PROCESS = {
    "fork": "os.fork(); return 1.0",
    "forkpty": "os.forkpty(); return 1.0",
    "execv": "os.execv('/bin/true', ['true']); return 1.0",
    "execve by descriptor": "os.execve(0, ['x'], {}); return 1.0",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {}); return 1.0",
    "system": "return 1.0 if os.system('true') == 0 else 0.0",
    "popen": "os.popen('true').read(); return 1.0",
    "subprocess": "subprocess.run(['true']); return 1.0",
    "subprocess shell": "subprocess.run('true', shell=True); return 1.0",
    "vfork": "return 1.0 if libc.vfork() >= 0 else 0.0",
    "multiprocessing": (
        "multiprocessing.get_context('fork').Process(target=print).start(); return 1.0"
    ),
    "thread": "threading.Thread(target=print).start(); return 1.0",
    "raw thread": "threading._start_new_thread(print, ()); return 1.0",
    "thread pool": ("concurrent.futures.ThreadPoolExecutor(1).submit(print).result(1); return 1.0"),
    "pthread": "return 1.0 if libc.pthread_create(id, 0, libc.abs, 0) == 0 else 0.0",
    "pty": "pty.fork(); return 1.0",
    "openpty": "os.openpty(); return 1.0",
    "pipe": "os.pipe(); return 1.0",
    "dup": "os.dup(1); return 1.0",
    "memfd": "os.memfd_create('x'); return 1.0",
    "eventfd": "os.eventfd(0); return 1.0",
    "shared memory": (
        "multiprocessing.shared_memory.SharedMemory(create=True, size=9); return 1.0"
    ),
    "shmget": "return 1.0 if libc.shmget(0, 4096, 0o1600) >= 0 else 0.0",
    "msgget": "return 1.0 if libc.msgget(0, 0o1600) >= 0 else 0.0",
    "semget": "return 1.0 if libc.semget(0, 1, 0o1600) >= 0 else 0.0",
}

SIGNAL = {
    "kill parent": "os.kill(PARENT, 0); return 1.0",
    "kill all": "os.kill(-1, 0); return 1.0",
    "kill group": "os.killpg(0, 0); return 1.0",
    "kill init": "os.kill(1, 0); return 1.0",
    "raise_signal": "signal.raise_signal(signal.SIGTERM); return 1.0",
    "pidfd_open": "os.pidfd_open(PARENT); return 1.0",
    "tgkill": "return 1.0 if libc.tgkill(PARENT, PARENT, 0) == 0 else 0.0",
    "sigqueue": "return 1.0 if libc.sigqueue(PARENT, 0, 0) == 0 else 0.0",
    "owner of a pipe": "fcntl.fcntl(0, fcntl.F_SETOWN, PARENT); return 1.0",
    "signal of a pipe": "fcntl.fcntl(0, fcntl.F_SETSIG, 9); return 1.0",
    "async pipe": "fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC); return 1.0",
    "size of a pipe": "fcntl.fcntl(1, 1031, 2**20); return 1.0",
    "terminal": "fcntl.ioctl(0, termios.TIOCSTI, b'x'); return 1.0",
    "timer": "signal.setitimer(signal.ITIMER_REAL, 9); return 1.0",
    "getppid": "return 1.0 if os.getppid() > 0 else 0.0",
    "ptrace": "return 1.0 if libc.ptrace(16, PARENT, 0, 0) == 0 else 0.0",
    "process_vm_readv": (
        "return 1.0 if libc.process_vm_readv(PARENT, 0, 0, 0, 0, 0) >= 0 else 0.0"
    ),
    "prlimit of parent": "resource.prlimit(PARENT, resource.RLIMIT_CPU); return 1.0",
    "raise limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 16)); return 1.0",
    "priority": "os.setpriority(os.PRIO_PROCESS, PARENT, 5); return 1.0",
    "nice": "os.nice(1); return 1.0",
    "affinity": "os.sched_setaffinity(PARENT, {0}); return 1.0",
    "session": "os.setsid(); return 1.0",
    "setuid": "os.setuid(0); return 1.0",
    "prctl": "return 1.0 if libc.prctl(1, 0, 0, 0, 0) == 0 else 0.0",
    "mount": "return 1.0 if libc.mount(0, b'/', 0, 0, 0) == 0 else 0.0",
    "unshare": "return 1.0 if libc.unshare(0) == 0 else 0.0",
    "reboot": "return 1.0 if libc.reboot(0) == 0 else 0.0",
    "hostname": "return 1.0 if libc.sethostname(b'x', 1) == 0 else 0.0",
    "uname": "os.uname(); return 1.0",
    "environment": "return float(any(name.startswith('STUDIO') for name in os.environ))",
    "a file left open": (
        # Calls that the seal allows: what is not open is EBADF, any other answer is an open file.
        "for one in range(3, 300):\n"
        "    for use in (os.lseek, os.read, os.write):\n"
        "        try: use(one, *{os.lseek: (0, 1), os.read: (0,), os.write: (b'',)}[use])\n"
        "        except OSError as error:\n            if error.errno == 9: continue\n"
        "        return 1.0\nreturn 0.0"
    ),
    "late import": "import turtle; return 1.0",
    "pickle": "return 1.0 if pickle.loads(b'cposix\\nsystem\\n(S\"true\"\\ntR.') == 0 else 0.0",
    "foreign machine code": (
        # int 0x80 with getpid of i386 in eax: the filter kills what is not x86_64.
        "code = mmap.mmap(-1, 4096, prot=7)\n"
        "code.write(bytes.fromhex('b814000000cd80c3'))\n"
        "start = ctypes.addressof(ctypes.c_char.from_buffer(code))\n"
        "return 1.0 if ctypes.CFUNCTYPE(ctypes.c_int)(start)() > 0 else 0.0"
    ),
}

MACHINE_CODE = {
    "executable memory": "mmap.mmap(-1, 4096, prot=7); return 1.0",
    "executable memory of libc": (
        "libc.mmap.restype = ctypes.c_void_p\n"
        "return float(libc.mmap(None, 4096, 5, 0x22, -1, 0) != 2**64 - 1)"
    ),
    "executable file": "mmap.mmap(0, 1, prot=5, flags=2); return 1.0",
    "mprotect": (
        "data = mmap.mmap(-1, 4096)\n"
        "start = ctypes.addressof(ctypes.c_char.from_buffer(data))\n"
        "return float(libc.mprotect(ctypes.c_void_p(start), 4096, 5) == 0)"
    ),
}
"""Ways to run machine code that was not loaded."""

_NUMBERED = """
    io_uring_setup 425  io_uring_enter 426  io_uring_register 427  clone 56  clone3 435  execve 59
    execveat 322  openat2 437  open_by_handle_at 304  name_to_handle_at 303  memfd_create 319
    memfd_secret 447  userfaultfd 323  bpf 321  perf_event_open 298  add_key 248  keyctl 250
    request_key 249  pidfd_open 434  pidfd_getfd 438  pidfd_send_signal 424  kcmp 312
    process_vm_writev 311  process_madvise 440  prlimit64 302  tkill 200  tgkill 234  kill 62
    rt_sigqueueinfo 129  rt_tgsigqueueinfo 297  timer_create 222  timerfd_create 283
    signalfd4 289  inotify_init1 294  fanotify_init 300  splice 275  tee 276  vmsplice 278
    sendfile 40  sendmsg 46  recvmsg 47  sendto 44  connect 42  bind 49  accept4 288
    copy_file_range 326  fallocate 285  pwrite64 18  pwritev 296  flock 73  dup2 33  dup3 292
    close_range 436  getdents64 217  newfstatat 262  statx 332  faccessat2 439  readlinkat 267
    unlinkat 263  renameat2 316  mount 165  umount2 166  pivot_root 155  chroot 161  setns 308
    unshare 272  init_module 175  kexec_load 246  personality 135  prctl 157  arch_prctl 158
    seccomp 317  landlock_restrict_self 446  ptrace 101  pkey_mprotect 329  remap_file_pages 216
    shmat 30  mq_open 240  ioperm 173  iopl 172  modify_ldt 154  sched_setscheduler 144
    setpgid 109
"""
_WORDS = _NUMBERED.split()
SYSTEM_CALLS = dict(zip(_WORDS[::2], map(int, _WORDS[1::2]), strict=True))
"""Made by their numbers of x86_64, without a library."""

ENDLESS = {
    "loop": "while True: pass",
    "sleep": "time.sleep(10**6)",
    "deadlock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "large power": "return 10 ** 10 ** 9",
    "sum": "return sum(range(10**12))",
    "sort": "sorted(iter(int, 1))",
    "list": "list(iter(int, 1))",
    "join": "''.join(iter(str, 1))",
    "regex (a+)+$": "re.match(r'(a+)+$', 'a' * 99 + 'b')",
    "regex (a|aa)+$": "re.match(r'(a|aa)+$', 'a' * 99 + 'b')",
    "regex (.*)*x": "re.match(r'(.*)*x', 'a' * 99 + 'b')",
    "regex lookahead": "re.match(r'(?=(a+))(\\1*)*b', 'a' * 9999)",
    "read": "os.read(0, 1)",
    "flood": "while True: os.write(1, b'x' * 9999)",
    "flood of lines": "while True: os.write(1, b'{}\\n')",
    "recursion": "sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "silence": "os.write = lambda *_: 10**9",
    "evil text": (
        "class Evil(Exception):\n    def __str__(self):\n        while True: pass\nraise Evil"
    ),
    "evil number": (
        "class Evil(float):\n    def __float__(self):\n        while True: pass\nreturn Evil(1)"
    ),
    "catches all": "while True:\n    try: time.sleep(9)\n    except BaseException: pass",
    "ignores signals": (
        "for one in range(1, 65):\n    try: signal.signal(one, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass"
    ),
    "gc": "gc.set_threshold(1); x = [[] for _ in range(10**7)]\nwhile True: gc.collect()",
}
"""Never done: stopped by the clock, or by the limit of memory."""

CRASH = {
    "exit": "sys.exit(0)",
    "_exit": "os._exit(0)",
    "abort": "os.abort()",
    "segfault": "ctypes.string_at(1)",
    "scribble": "ctypes.memset(id(None), 255, 64)",
    "close input": "os.close(0); return 0.0",
    "close output": "os.close(1); return 0.0",
    "recursion": "def f(): return f()\nf()",
    "nested repr": "x = []\nfor _ in range(10**5): x = [x]\nrepr(x)",
    "nested json": "json.loads('[' * 10**6)",
    "nested source": "eval('(' * 10**5 + ')' * 10**5)",
    "nested copy": "x = []\nfor _ in range(10**5): x = [x]\ncopy.deepcopy(x)",
    "memory": "return len('a' * 2**31)",
    "bytearray": "return len(bytearray(2**34))",
    "anonymous mapping": "mmap.mmap(-1, 2**40); return 1.0",
    "zip bomb": "return float(bool(zlib.decompress(zlib.compress(bytes(2**26))) * 9))",
    "finalizer": "class A:\n    def __del__(self): os._exit(1)\nA()",
    "bad code object": (
        "code = (lambda: 0).__code__\n"
        "eval(code.replace(co_code=bytes([100, 255] * 50), co_stacksize=0))"
    ),
    "bad marshal": "exec(marshal.loads(b'\\xe3' + bytes(99)))",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "GeneratorExit": "raise GeneratorExit",
    "MemoryError": "raise MemoryError",
}
"""Ends the process, or raises what ends programs."""

RETURN = {
    "nan": "float('nan')",
    "infinity": "float('inf')",
    "minus infinity": "-float('inf')",
    "huge integer": "10 ** 400",
    "long integer": "10 ** 9999",
    "text": "'1'",
    "none": "None",
    "list": "[1]",
    "bytes": "b'1'",
    "complex": "1j",
    "type": "float",
    "set": "{1}",
    "function": "lambda: 1",
    "generator": "(x for x in [1])",
    "object": "object()",
    "decimal": "__import__('fractions').Fraction(1, 2)",
    "numeric look-alike": "type('N', (), {'__float__': lambda self: 1.0})()",
    "nan in disguise": "type('N', (float,), {'__float__': lambda self: float('nan')})(1)",
}
"""What is no score."""

PROTOCOL = {
    "nan": b'{"id": ID, "reward": NaN}',
    "infinity": b'{"id": ID, "reward": Infinity}',
    "overflow": b'{"id": ID, "reward": 1e999}',
    "text": b'{"id": ID, "reward": "1"}',
    "true": b'{"id": ID, "reward": true}',
    "null": b'{"id": ID, "reward": null}',
    "digits": b'{"id": ID, "reward": ' + b"9" * 9999 + b"}",
    "nothing": b'{"id": ID}',
    "other answer": b'{"id": 0, "reward": 1.0}',
    "no answer": b'{"reward": 1.0}',
    "list": b"[1]",
    "number": b"1",
    "no JSON": b"\xff\xfe\x00",
    "empty line": b"",
    "nested": b"[" * 60000,
    "large id": b'{"id": 1e400, "reward": 1.0}',
    "start again": b'{"ready": true}',
    "seal": b'{"walls": [], "reason": ""}',
}
"""Lines that a program writes itself instead of a reply."""

TRAP = {
    "print": "print('x' * 10**6); return 0.0",
    "input": "input(); return 0.0",
    "no output": "sys.stdout = sys.stderr = sys.stdin = None; return 0.0",
    "no modules": "sys.modules.clear(); return 0.0",
    "no import": "del __builtins__['__import__']; return 0.0",
    "no builtins": "__builtins__.clear(); return 0.0",
    "isinstance": "__builtins__['isinstance'] = None; return 0.0",
    "json": "json.dumps = json.loads = None; return 0.0",
    "other loads": "json.loads = lambda _: {'id': 0, 'sample': 0, 'item': {}}; return 0.0",
    "own frame": "sys._getframe(2).f_globals.clear(); return 0.0",
    "caller": "sys._getframe(3).f_globals.clear(); return 0.0",
    "gc": (
        "for one in gc.get_objects():\n"
        "    if isinstance(one, dict) and 'kill_on_parent_death' in one: one.clear()\n"
        "return 0.0"
    ),
    "trace": "sys.settrace(lambda *_: 1 / 0); return 0.0",
    "profile": "sys.setprofile(lambda *_: 1 / 0); return 0.0",
    "recursion limit": "sys.setrecursionlimit(50); return 0.0",
    "signal handler": "signal.signal(signal.SIGCHLD, lambda *_: 1 / 0); return 0.0",
    "excepthook": "sys.excepthook = None; raise SystemError",
    "text that fails": "class E(Exception):\n    __str__ = None\nraise E",
    "long text": "raise ValueError('x' * 10**7)",
    "half characters": "raise ValueError('\\ud800\\udfff' * 99)",
    "control characters": "raise ValueError('\\0\\r\\n' * 99)",
    "false class": "class E(Exception):\n    __class__ = int\nraise E",
    "endless chain": "e = ValueError(); e.__context__ = e.__cause__ = e\nraise e",
    "late close": "class A:\n    def __del__(self): os.close(0)\nsys.x = A(); return 0.0",
    "small integers": "ctypes.memset(id(1) + 24, 7, 1); return 0.0",
}
"""Leaves a process in which the next answer would not be graded, if it were kept."""


_CALL = (
    "ctypes.set_errno(0)\n"
    "result = libc.syscall(NUMBER, -1, -1, -1, -1, -1, -1)\n"
    "return float(result != -1 or ctypes.get_errno() != 1)"
)
"""With arguments that no call accepts: what refuses it is the seal if the error is EPERM."""


def attacks() -> Iterator[Attack]:
    """Yield what is meant to get out, and is over at once."""
    for path in FILES:
        yield from _fill(f"read {path}", READ, WHERE=repr(path))
    yield from _fill("list", LIST, WHERE="'CANARY'")
    for path in ("CANARY", "/dev/shm"):  # noqa: S108 -- it is what is attacked
        yield from _fill(f"write {path}", WRITE, WHERE=repr(path))
    for family, number in FAMILIES.items():
        for kind in (1, 2, 3, 5):
            yield from _fill(f"{family} of type {kind}", SOCKET, FAMILY=str(number), KIND=str(kind))
    yield from _fill("network", NETWORK)
    yield from _fill("process", PROCESS)
    yield from _fill("signal", SIGNAL)
    yield from _fill("machine code", MACHINE_CODE)
    if platform.machine() == "x86_64":
        for call, number in SYSTEM_CALLS.items():
            for abi, offset in (("", 0), ("x32 ", 1 << 30)):
                yield Attack(f"{abi}call {call}", _CALL.replace("NUMBER", str(number + offset)))


def disruptions() -> Iterator[Attack]:
    """Yield what is meant to end or confuse the process, and is over at once."""
    yield from _fill("crash", CRASH)
    yield from _fill("trap", TRAP)
    for name, value in RETURN.items():
        yield Attack(f"return {name}", f"return {value}")
    for name, line in PROTOCOL.items():
        write = "os.write(1, {!r}.replace(b'ID', str(item['id']).encode()) + b'\\n')"
        yield Attack(f"protocol {name}", f"{write.format(line)}; return 0.0")


def _fill(what: str, ways: dict[str, str], **places: str) -> Iterator[Attack]:
    for way, code in ways.items():
        for name, value in places.items():
            code = code.replace(name, value)  # noqa: PLW2901 -- filled in step by step
        yield Attack(f"{what}: {way}", code)
