"""``graphtide``, and ``python -m graphtide``: the command line."""

import signal


def main() -> None:
    """Load the command line, and run it. An interrupt meanwhile ends the process as the system does, without a
    traceback of what was being imported; from then on commands see to interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .daemon import cli

    cli.main()


if __name__ == "__main__":
    main()
