"""``graphtide``, and ``python -m graphtide``: the command line."""

import os
import signal


def main() -> None:
    """Load the command line, and run it. An interrupt meanwhile ends the process as the system does, without a
    traceback of what was being imported; from then on commands see to interrupts. The first process of a container
    the system does not end where nobody listens for the signal: until somebody does, we do."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    from .daemon import cli

    cli.main()


if __name__ == "__main__":
    main()
