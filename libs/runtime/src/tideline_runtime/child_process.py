"""Run a command that dies with its supervisor: `python -I -S child_process.py <supervisor's pid> <command> ...`.

On Linux the kernel sends SIGKILL to the command when the thread that started this process ends, for any reason. On other
systems the command survives its supervisor. The module uses the standard library only, and executes the command in this
process, so that the process id stays the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
EXIT_NOT_FOUND = 127


def main(arguments: list[str]) -> int:
    """Tie this process to the supervisor, then execute the command. Returns only if that fails: the exit code.

    1: the supervisor has ended; `EXIT_NOT_FOUND`: the command cannot be executed, or the process cannot be tied to the supervisor.
    """
    supervisor, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.stderr.write(f"prctl: {os.strerror(ctypes.get_errno())}\n")
            return EXIT_NOT_FOUND
    # The supervisor may have ended before `prctl` took effect.
    if os.getppid() != supervisor:
        return 1
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command is the supervisor's own
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
    return EXIT_NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
