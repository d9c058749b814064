# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a test's own process."""

import signal
import threading
from contextlib import contextmanager, suppress

from patience import PATIENCE


@contextmanager
def ctrl_c_after(seconds):
    """A context in which SIGINT is raised once, `seconds` after it is entered, if it lasts so long.

    Python's handler is set, because shells start background processes with the signal ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(seconds, signal.raise_signal, [signal.SIGINT])
    timer.start()
    try:
        yield
    finally:
        with suppress(KeyboardInterrupt):  # raised between the end of the context and cancel()
            timer.cancel()
            timer.join(PATIENCE)
        signal.signal(signal.SIGINT, before)
