"""Commands that end: their output, or an error that says what they printed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import ClusterError

TIMEOUT_S = 120.0
POLL_S = 0.2
SHOWN_CHARACTERS = 2000


def run(
    command: Sequence[str | Path],
    *,
    given: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    nice: bool = False,
) -> str:
    """Run a command with the text `given` as its input and return its output. Raises ClusterError if it fails or takes too long."""
    texts = [*map(str, command)]
    shown = " ".join(texts[:4])
    try:
        done = subprocess.run(
            ["nice", "-n", "10", *texts] if nice else texts,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            env=None if environment is None else dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"found no program {texts[0]}; expected it on the PATH") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{shown} took more than {timeout_s:.0f} s") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-SHOWN_CHARACTERS:]
        raise ClusterError(f"{shown} ended with {done.returncode}: {said}")
    return done.stdout


def succeeds(command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None) -> bool:
    """Return whether a command ends with exit code 0."""
    try:
        run(command, environment=environment)
    except ClusterError:
        return False
    return True


def wait_until(what: str, is_true: Callable[[], bool], *, timeout_s: float, poll_s: float = POLL_S) -> None:
    """Ask every `poll_s` seconds until `is_true`. Raises ClusterError after `timeout_s` seconds."""
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline_s:
            raise ClusterError(f"waited {timeout_s:.0f} s; expected: {what}")
        time.sleep(poll_s)
