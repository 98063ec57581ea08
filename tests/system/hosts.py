# SPDX-License-Identifier: Apache-2.0
"""Simulates several hosts on one: network and UTS namespaces joined by a bridge, and mpirun over
them.

Everything is inside one network namespace of the test, so the machine's own network is not touched.
The kernel removes it with the last process. Needs root, util-linux and iproute2.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import harness

MARK = "TRIREME_TEST_HOSTS"
# Addresses reserved for documentation (RFC 5737). No real network has them; outside of the test's
# namespace they do not exist.
ADDRESS = "192.0.2.%d"

AGENT = """#!/bin/sh
# Replaces ssh for mpirun: HOST COMMAND..., or -x HOST COMMAND... for hydra.
[ "$1" != -x ] || shift
read -r pid < "${0%/*}/$1.pid" || exit 255
shift
exec nsenter -t "$pid" -n -u -- /bin/sh -c "$*"
"""


def call(*words):
    subprocess.run(
        words,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def enter():
    """Restarts this program in its own network namespace. Skips the test if none can be made."""
    if os.environ.get(MARK):
        return
    if os.geteuid() != 0:
        harness.skip("hosts are made of namespaces, as root")
    for program in ("unshare", "nsenter", "ip"):
        if not shutil.which(program):
            harness.skip("no %s on this machine" % program)
    trial = (
        "ip link add trial type veth peer name other && ip link add bridge type bridge && unshare "
        "--net --uts hostname trial"
    )
    probe = subprocess.run(
        ["unshare", "--net", "sh", "-c", trial],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if probe.returncode != 0:
        harness.skip("namespaces cannot be made here: " + probe.stdout.strip())
    os.environ[MARK] = "1"
    os.execvp("unshare", ["unshare", "--net", "--uts", sys.executable] + sys.argv)


class Host:
    """One host: a process that keeps the namespaces, and all processes in them."""

    def __init__(self, name, number, folder):
        self.name, self.address = name, ADDRESS % number
        self.keeper = subprocess.Popen(
            ["unshare", "--net", "--uts", "sleep", "infinity"], stdin=subprocess.DEVNULL
        )
        own = os.readlink("/proc/self/ns/net")
        while os.readlink("/proc/%d/ns/net" % self.keeper.pid) == own or os.readlink(
            "/proc/%d/ns/uts" % self.keeper.pid
        ) == os.readlink("/proc/self/ns/uts"):
            time.sleep(0.005)
        self.namespace = os.readlink("/proc/%d/ns/net" % self.keeper.pid)
        self.link = "port%d" % number
        self.call("hostname", name)
        call(
            "ip",
            "link",
            "add",
            self.link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(self.keeper.pid),
        )
        call("ip", "link", "set", self.link, "master", "switch", "up")
        self.call("ip", "link", "set", "lo", "up")
        self.call("ip", "address", "add", self.address + "/24", "dev", "eth0")
        self.call("ip", "link", "set", "eth0", "up")
        with open(os.path.join(folder, name + ".pid"), "w") as file:
            file.write("%d\n" % self.keeper.pid)

    def inside(self):
        return ["nsenter", "-t", str(self.keeper.pid), "-n", "-u", "--"]

    def call(self, *words):
        call(*self.inside(), *words)

    def processes(self):
        """Returns the process ids, without that of the keeper."""
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                if (
                    pid != self.keeper.pid
                    and os.readlink("/proc/%d/ns/net" % pid) == self.namespace
                    and (harness.state_of(pid) or "Z")[0] not in "ZX"
                ):
                    found.append(pid)
            except OSError:
                pass
        return found

    def signal_all(self, number):
        """Sends a signal to every process of the host, until no new ones are found."""
        done = set()
        while set(self.processes()) - done:
            for pid in set(self.processes()) - done:
                done.add(pid)
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass

    def set_link(self, state):
        call("ip", "link", "set", self.link, state)

    def reaches(self, other):
        """Returns whether the network reaches another host: nobody listens there, so it refuses at
        once."""
        probe = (
            "import socket, sys\nsys.exit(0 if socket.socket().connect_ex((%r, 9)) == %d else 1)"
            % (other.address, errno.ECONNREFUSED)
        )
        return (
            subprocess.run(
                self.inside() + [sys.executable, "-c", probe], stdin=subprocess.DEVNULL
            ).returncode
            == 0
        )

    def close(self):
        self.signal_all(signal.SIGKILL)
        self.keeper.kill()
        self.keeper.wait()


class Hosts:
    """Hosts with these names on one switch. A program starts on the first of its hosts, like a
    batch script."""

    def __init__(self, names, folder):
        self.folder = folder
        os.makedirs(folder)
        self.agent = os.path.join(folder, "agent")
        with open(self.agent, "w") as file:
            file.write(AGENT)
        os.chmod(self.agent, 0o755)
        call("ip", "link", "add", "switch", "type", "bridge")
        call("ip", "link", "set", "switch", "up")
        self.hosts = {name: Host(name, i + 1, folder) for i, name in enumerate(names)}

    def __getitem__(self, name):
        return self.hosts[name]

    def start(self, names, *arguments, ranks_per_host=1, cwd=None, program=None):
        """Starts the program with `ranks_per_host` ranks on each host in this order, and returns at
        once. `program`: another program instead."""
        env = harness.environment()
        env.update(
            OMPI_MCA_plm="rsh",
            OMPI_MCA_plm_rsh_agent=self.agent,
            PRTE_MCA_plm="ssh",
            PRTE_MCA_plm_ssh_agent=self.agent,
            OMPI_MCA_pml="ob1",
            OMPI_MCA_btl_tcp_if_include="eth0",
            OMPI_MCA_oob_tcp_if_include="eth0",
            UCX_TLS="tcp,self",
            UCX_NET_DEVICES="eth0",
        )
        by_name = (
            ["-launcher", "ssh", "-launcher-exec", self.agent, "-iface", "eth0", "-hosts"]
            if harness.has_hydra()
            else ["--host"]
        )
        launcher = [
            harness.MPIEXEC,
            "-n",
            str(ranks_per_host * len(names)),
            *by_name,
            ",".join("%s:%d" % (name, ranks_per_host) for name in names),
        ]
        return subprocess.Popen(
            self.hosts[names[0]].inside()
            + launcher
            + [program or harness.TRIREME, *map(str, arguments)],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self):
        for host in self.hosts.values():
            host.close()
        call("ip", "link", "delete", "switch")
