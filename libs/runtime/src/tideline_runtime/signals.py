"""Deliver termination signals as calls in a thread, even while the main thread is inside a long native call."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATION = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_termination(call: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Within the context, let SIGTERM and SIGINT call `call` in a separate thread instead of ending the process.

    Must be entered in the main thread. The previous handlers are restored at the end.
    """
    assert threading.current_thread() is threading.main_thread(), "Python sets signal handlers in the main thread only"
    # The interpreter's C handler writes the signal number into the pipe at once. A Python handler would wait for the main thread,
    # and could not set an Event safely, because it may interrupt the wait that holds the Event's lock.
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    before = {number: signal.signal(number, _nothing) for number in TERMINATION}
    descriptor_before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    thread = threading.Thread(target=_deliver, args=(readable, call), name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writable)
        thread.join()
        os.close(readable)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the pipe already holds the signal number."""


def _deliver(readable: int, call: Callable[[signal.Signals], None]) -> None:
    while numbers := os.read(readable, 64):
        for number in numbers:
            if number in TERMINATION:
                call(signal.Signals(number))
