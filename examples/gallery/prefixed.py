"""`--launcher prefixed --prefix "numactl --membind 0"`: processes with a command before them."""

import os
import shlex
import signal
import subprocess
import sys

import msgspec

from builtin_plugins.executors.api import Exit, RemoteChild, TcpListener
from core.api import Entry, Option, hookimpl

MODULE = "builtin_plugins.executors.process.remote_child"


class Process:
    def __init__(self, popen):
        self._popen = popen

    def exit(self):
        status = self._popen.poll()
        return None if status is None else Exit(f"status {status}", status == -signal.SIGKILL)

    def kill(self):
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGKILL)


class Prefixed:
    def __init__(self, config, registry):
        self.host, self._prefix = (config.options[name] for name in ("prefix_host", "prefix"))
        self._listener = TcpListener(self.host, "--prefix-host")

    def start(self, what, kinds, environment, group):
        child = RemoteChild(self._listener, what, kinds)
        command = [*shlex.split(self._prefix), sys.executable, "-P", "-m", MODULE]
        env = os.environ | environment
        popen = subprocess.Popen(command, stdin=subprocess.PIPE, env=env, process_group=0)
        credentials = msgspec.structs.replace(child.credentials, host=self.host)
        with popen.stdin as stdin:  # secret, so not on the command line
            stdin.write(msgspec.json.encode(credentials))
        child.process = Process(popen)
        return child

    def close(self):
        self._listener.close()


@hookimpl
def engine_options():
    return [
        Option("prefix", str, "env", "Command before each process of --launcher prefixed."),
        Option("prefix_host", str, "127.0.0.1", "Address at which they reach their parent."),
    ]


@hookimpl
def engine_launchers():
    return [Entry("prefixed", Prefixed, "processes with a command before them")]
