"""What systemd is told over the socket that it names (sd_notify(3)); elsewhere nothing happens."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Tell a state: ``READY=1``, ``STOPPING=1``, ``WATCHDOG=1``, ``STATUS=...``."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_systemd:
            to_systemd.connect("\0" + address[1:] if address.startswith("@") else address)
            to_systemd.sendall(state.encode())
    except OSError as error:
        log.warning("systemd cannot be told %s: %s", state, error)


def watchdog_interval_s() -> float | None:
    """How often the watchdog is told: twice in the time that it allows; None: there is none for this process."""
    allowed_us = os.environ.get("WATCHDOG_USEC", "")
    meant = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not allowed_us.isdigit() or int(allowed_us) == 0 or meant != str(os.getpid()):
        return None
    return int(allowed_us) / 2e6


@contextmanager
def watchdog(alive: Callable[[], bool]) -> Iterator[None]:
    """Meanwhile tell systemd's watchdog, if there is one, that all is well, as long as ``alive`` says so."""
    interval_s = watchdog_interval_s()
    if interval_s is None:
        yield
        return
    ended = threading.Event()

    def tell() -> None:
        while True:
            if alive():
                notify("WATCHDOG=1")
            if ended.wait(interval_s):
                return

    teller = threading.Thread(target=tell, name="watchdog", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
