"""The systemd that tests play."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def told_to_systemd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What systemd is told by this process, and by those that are started meanwhile."""
    messages: list[str] = []
    address = str(folder / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)

        def listen() -> None:
            while (message := ours.recv(1000)) != b"end":
                messages.append(message.decode())

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield messages
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
                own.sendto(b"end", address)
            listener.join()
