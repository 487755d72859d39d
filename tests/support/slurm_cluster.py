"""A Slurm cluster for tests, from the system's packages: one node, in a temporary folder."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from studio.worker.launchers.jobs.launcher import JobLauncher, Timing
from studio.worker.launchers.slurm.engine import SlurmEngine
from tests.support.live_studio import free_port
from tests.support.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")

_CONFIG = """
ClusterName=studio
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=100000
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_reason() -> str:
    """Return why no cluster can be started; empty if one can."""
    if missing := [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    return "" if os.getuid() == 0 else "Slurm's daemons start as root only"


@dataclass(slots=True)
class SlurmCluster:
    folder: Path
    options: Sequence[str] = ()
    _controller: subprocess.Popen[bytes] | None = None
    _others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    def start(self) -> None:
        host = socket.gethostname().partition(".")[0]
        ports = (free_port(), free_port())
        self.config.write_text(_CONFIG.format(host=host, folder=self.folder, ports=ports))
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files: dict[str, str | Path] = {
            "key-file": key,
            "socket": "munge.sock",
            "pid-file": "munge.pid",
        }
        files |= {"pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self._others.append(self._spawn("munged", "--foreground", "--force", *options))
        wait_until((self.folder / "munge.sock").exists)
        self.come_back()
        self._others.append(self._spawn("slurmd", "-D"))
        wait_until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%T"))

    def go_away(self) -> None:
        """End the controller, which saves its state; jobs keep running, and nothing answers."""
        assert self._controller is not None
        self._controller.terminate()
        self._controller.wait()

    def come_back(self) -> None:
        self._controller = self._spawn("slurmctld", "-D")
        wait_until(lambda: bool(self.ask("sinfo", "--noheader")))

    def stop(self) -> None:
        self.ask("scancel", "--me", "--signal=KILL", "--full")
        self.ask("scancel", "--me")
        wait_until(lambda: not self.ask("squeue", "--noheader", "--states=R,CG"))
        for daemon in reversed([*self._others, *filter(None, [self._controller])]):
            with suppress(ProcessLookupError):
                daemon.kill()
            daemon.wait()

    def launcher(self, command: Sequence[str], timing: Timing) -> JobLauncher:
        engine = SlurmEngine(self.options)
        return JobLauncher(engine, "test", sys.executable, command, timing=timing)

    def ask(self, *command: str) -> str:
        """Return what a command prints; nothing if it fails."""
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def _spawn(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        path = shutil.which(program, path=_path())
        assert path is not None
        with (self.folder / f"{program}.out").open("ab") as log:
            return subprocess.Popen([path, *options], stdout=log, stderr=log)


@contextmanager
def run_cluster() -> Iterator[SlurmCluster]:
    """Run a cluster for this process, which its environment names, and delete it afterwards."""
    cluster = SlurmCluster(Path(mkdtemp(prefix="slurm-")))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(cluster.config)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(cluster.folder, ignore_errors=True)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"
