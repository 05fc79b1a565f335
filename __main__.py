"""``python -m graphtide`` is the command line."""

from .daemon.cli import main

main()
