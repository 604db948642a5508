"""Named windows and marks in the recording that `gpumon run` or `gpumon record` makes.

    with gpumon_window.window("epoch 1"):
        train()

Outside of a recording, where GPUMON_SOCKET is not set, all of this does nothing.
"""

import contextlib
import os
import socket


def _ask(line):
    path = os.environ.get("GPUMON_SOCKET")
    if not path:
        return
    with socket.socket(socket.AF_UNIX) as recorder:
        recorder.connect(path)
        recorder.sendall((line + "\n").encode())
        answer = recorder.makefile().readline().strip()
    if answer != "ok":
        raise RuntimeError(f"gpumon: {answer or 'no answer'}")


def mark(name):
    _ask(f"mark {name}")


@contextlib.contextmanager
def window(name):
    _ask(f"begin {name}")
    try:
        yield
    finally:
        _ask(f"end {name}")
