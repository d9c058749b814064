# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a test's own process."""

import signal
import threading
from contextlib import contextmanager

from patience import PATIENCE


@contextmanager
def ctrl_c_after(seconds):
    """In this context Ctrl-C comes so many seconds after the start, once.

    Shells start what runs in the background with the signal ignored, so Python's handler is set.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(seconds, signal.raise_signal, [signal.SIGINT])
    timer.start()
    try:
        yield
    finally:
        timer.join(PATIENCE)
        signal.signal(signal.SIGINT, before)
