# SPDX-License-Identifier: Apache-2.0
"""Starts a real Slurm on this host for a test: munged, slurmctld and one slurmd.

Their state is in a temporary folder, and no process or file is left behind. The one node has more
cores for Slurm than for the test, so that it takes ranks of several cores. Besides there are 64
nodes of 8 GPUs in the partition `big`, which exist only for `sbatch --test-only`.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import harness

CONFIGURATION = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/sock
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,\
sched_min_interval=0,defer_batch
MpiDefault={mpi}
TmpFS={folder}/tmp
ReturnToService=2
KillWait=5
BatchStartTimeout=300
MessageTimeout=100
SlurmdParameters=config_overrides
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=INFINITE
ResumeTimeout=60
GresTypes=gpu
PropagateResourceLimits=NONE
MailProg=/bin/true
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} \
CPUs=32 Sockets=1 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN
NodeName=big[00-63] NodeAddr=127.0.0.1 Port={big_port} \
CPUs=64 Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=1000000 \
Gres=gpu:8 State=CLOUD
PartitionName=big Nodes=big[00-63] MaxTime=INFINITE State=UP
PartitionName=small Nodes=n0 Default=YES MaxTime=INFINITE State=UP
"""

# From <linux/prctl.h>: sets the new parent of orphaned processes, and the signal for a process
# whose parent dies.
PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG = 36, 1
prctl = ctypes.CDLL(None).prctl


def missing():
    """Returns the reason why no Slurm can be started here, or an empty string."""
    if os.geteuid() != 0:
        return "a Slurm of the test's own is started as root"
    for program in ("munged", "slurmctld", "slurmd", "sbatch", "srun"):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            return (
                program
                + " is not installed (Debian: slurm-wlm, munge; scripts/install_deps.sh tests)"
            )
    return ""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def descendants():
    """Returns the process ids of all direct and indirect children of this process."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name) as file:
                    parents[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found - {os.getpid()}
        found |= more


def guard(folder):
    """Starts a process between the test and the daemons that ends all of them and removes the
    folder.

    All processes that the daemons start become its children in the end (slurmstepd leaves its
    parent). It ends them when it is told to end, or when the test dies for any reason. If a daemon
    ends before, it writes the daemon's name and exit code into the file `ended`, for wait().
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    munge = folder + "/munge/"
    daemons = []

    def watch():
        for daemon in daemons:
            if daemon.poll() is not None and not os.path.exists(folder + "/ended"):
                with open(folder + "/ended.new", "w") as file:
                    file.write("%s ended with code %d" % (daemon.args[0], daemon.returncode))
                os.rename(folder + "/ended.new", folder + "/ended")

    try:
        with open(folder + "/daemons.log", "a") as log:
            for command, ready in (
                (
                    (
                        "munged",
                        "--foreground",
                        "--force",
                        "--socket=" + munge + "sock",
                        "--key-file=" + munge + "key",
                        "--pid-file=" + munge + "pid",
                        "--log-file=" + munge + "log",
                        "--seed-file=" + munge + "seed",
                    ),
                    munge + "sock",
                ),
                (("slurmctld", "-D", "-c"), folder),
                (("slurmd", "-D", "-N", "n0"), folder),
            ):
                daemons.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
                while not os.path.exists(ready):
                    watch()
                    time.sleep(0.05)
        while True:
            watch()
            time.sleep(0.2)
    finally:
        for daemon in daemons:
            daemon.kill()
        left = descendants()
        while left:  # the children of a killed process may become ours
            for pid in left:
                with contextlib.suppress(ProcessLookupError):  # its own parent was faster
                    os.kill(pid, signal.SIGKILL)
            while True:
                try:
                    os.wait()
                except ChildProcessError:
                    break
            left = descendants()
        shutil.rmtree(folder, ignore_errors=True)


class Cluster:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="trireme-slurm-")
        self.environment = dict(
            os.environ,
            SLURM_CONF=self.folder + "/slurm.conf",
            PATH=os.environ["PATH"] + ":/usr/sbin:/sbin",
        )
        for name in [
            name for name in self.environment if name.startswith(("SLURM_JOB", "SBATCH_", "SRUN_"))
        ]:
            del self.environment[name]
        self.guard = None
        try:
            self.start()
        except Exception:
            self.stop()
            raise

    def start(self):
        os.chmod(self.folder, 0o755)
        for name, mode in (("munge", 0o700), ("state", 0o755), ("spool/n0", 0o755), ("tmp", 0o755)):
            os.makedirs(self.folder + "/" + name, mode)
        with open(self.folder + "/munge/key", "wb") as file:
            file.write(os.urandom(1024))
        os.chmod(self.folder + "/munge/key", 0o400)
        port, node_port, big_port = free_ports(3)
        with open(self.folder + "/slurm.conf", "w") as file:
            file.write(
                CONFIGURATION.format(
                    host=socket.gethostname().split(".")[0],
                    folder=self.folder,
                    port=port,
                    node_port=node_port,
                    big_port=big_port,
                    mpi="pmi2" if harness.has_hydra() else "pmix",
                )
            )
        with open(self.folder + "/gres.conf", "w") as file:
            file.write("AutoDetect=off\n")
        # The configuration above needs no cgroups, so a slurmd that can starts without them.
        if self.version() >= (24, 5):
            with open(self.folder + "/cgroup.conf", "w") as file:
                file.write("CgroupPlugin=disabled\n")
        self.guard = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), self.folder],
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )
        self.wait(self.is_up, 180, "Slurm does not come up")

    def is_up(self):
        try:
            state = self.call("sinfo", "-h", "-p", "small", "-o", "%T", timeout=10)
        except RuntimeError:
            return False  # slurmctld does not answer yet
        return state.strip() == "idle"  # "idle*" would be a node whose slurmd does not answer

    def version(self):
        """Returns year and month of the installed Slurm, as in (24, 11)."""
        return tuple(map(int, re.search(r"(\d+)\.(\d+)", self.call("slurmd", "-V")).groups()))

    def wait(self, condition, seconds, what):
        """Waits until the condition holds. Raises RuntimeError after `seconds`, and at once if a
        daemon has ended."""
        deadline = time.monotonic() + seconds
        while True:
            if os.path.exists(self.folder + "/ended"):
                with open(self.folder + "/ended") as file:
                    raise RuntimeError(file.read() + ":\n" + self.logs())
            if self.guard.poll() is not None:
                raise RuntimeError("the process that starts Slurm ended")
            if condition():
                return
            if time.monotonic() > deadline:
                raise RuntimeError(what + ":\n" + self.logs())
            time.sleep(0.1)

    def logs(self):
        text = ""
        for name in ("daemons.log", "slurmctld.log", "slurmd.log"):
            if os.path.exists(self.folder + "/" + name):
                with open(self.folder + "/" + name) as file:
                    text += "".join(["== " + name + "\n"] + file.readlines()[-20:])
        return text

    def call(self, *command, check=True, cwd=None, timeout=600, **environment):
        """Returns the output of a command (both streams). Raises RuntimeError if it takes more than
        `timeout` seconds."""
        try:
            result = subprocess.run(
                [str(word) for word in command],
                env={**self.environment, **environment},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError("%s:\n%s" % (error, self.logs()))
        if check and result.returncode != 0:
            raise RuntimeError("%s: %d\n%s" % (command[0], result.returncode, result.stdout))
        return result.stdout

    def jobs(self):
        """Returns the numbers of the waiting and running jobs."""
        return self.call("squeue", "-h", "-o", "%i", "-t", "PENDING,RUNNING,COMPLETING").split()

    def job(self, number):
        """Returns the fields that scontrol prints for a job."""
        return dict(
            field.split("=", 1)
            for field in self.call("scontrol", "-o", "show", "job", number).split()
            if "=" in field
        )

    def stop(self):
        if self.guard:
            self.guard.terminate()
            self.guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    guard(sys.argv[1])
