"""Real child processes whose output the tests await line by line."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.forked import Forked, parent_of

MODULES = ("tideline_runtime.lifecycle", "tideline_runtime.loop", "tideline_runtime.settings")
TINY = Path(__file__).with_name("tiny_service.py")
DEADLINE_S = 120


def clean_environment(**variables):
    return {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")} | variables


def started(command, **variables):
    """A process of its own, from the start of the interpreter on."""
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(**variables),
        stdin=subprocess.DEVNULL,
    )


class Program:
    """A process with its lines as they come. Killed at the end of the context, whatever happened."""

    def __init__(self, process):
        self.process = process
        self.lines = []
        self._queue = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def await_line(self, accepts, count=1):
        """The `count`-th further line that `accepts`; fails when the process ends or takes too long before."""
        while True:
            line = self._queue.get(timeout=DEADLINE_S)
            assert line is not None, f"ended with {self.process.wait()} after {self.lines}"
            self.lines.append(line)
            if accepts(line):
                count -= 1
                if not count:
                    return line

    def await_event(self, event, count=1):
        return json.loads(self.await_line(lambda line: json.loads(line)["event"] == event, count))

    def await_end(self):
        """Exit code, once all output is read."""
        code = self.process.wait(timeout=DEADLINE_S)
        while (line := self._queue.get(timeout=DEADLINE_S)) is not None:
            self.lines.append(line)
        return code

    def terminate(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def logged(self):
        return [json.loads(line) for line in self.lines]


def tiny(state_folder, *arguments, behaviour="good", warnings="error", forked=True, **variables):
    # Every warning is an error, also those of resources that were not closed: they would show up as lines that are no JSON.
    options = ("-X", "dev", "-W", warnings)
    # The debugging allocator of this mode doubles the time of the start and finds nothing about services.
    allocator = {"PYTHONMALLOC": "default"}
    defaults = {"TIDELINE_STATE_FOLDER": str(state_folder), "TIDELINE_TINY__BEHAVIOUR": behaviour}
    if not forked:
        return Program(started([sys.executable, *options, str(TINY), *arguments], **(allocator | defaults | variables)))
    parent = parent_of(MODULES, options, tuple(allocator.items()))
    program = Forked(parent, [str(TINY), *arguments], clean_environment(**(defaults | variables)))
    program.stdin.close()
    return Program(program)
