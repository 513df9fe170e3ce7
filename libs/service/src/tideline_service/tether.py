"""Run a command that dies with its supervisor: `python -I -S tether.py <supervisor's pid> <command> ...`.

On Linux the kernel sends SIGKILL to the command when the thread that started it ends, however that happens. Elsewhere the command
just runs. Uses the standard library only and replaces itself, so that the command keeps this process id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
EXIT_NOT_FOUND = 127


def main(arguments: list[str]) -> int:
    """Tie to the supervisor, then become the command; returns only if that fails."""
    supervisor, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.stderr.write(f"prctl: {os.strerror(ctypes.get_errno())}\n")
            return EXIT_NOT_FOUND
    # The supervisor may have gone before the tie was there.
    if os.getppid() != supervisor:
        return 1
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command is the supervisor's own
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
    return EXIT_NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
