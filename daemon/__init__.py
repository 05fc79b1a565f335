"""The daemon: what streams come to, and how people and programs ask.

Its rooms, from above; each imports only what stands below it (the contracts are in ``pyproject.toml``, and
``make check`` holds them):

- ``cli``: the command line, which loads what a command needs when that is called.
- ``tools/``: commands for people; ``service``: the daemon's life, which builds all parts and hands them over.
- ``engine/``: epochs.
- ``ingest/``: from the source to the engine's door; ``serve/``: answers; ``state/``: checkpoints. These three
  do not know of each other.
- ``config/``: settings.
- ``records/``: what travels between rooms, and how it is written; ``client/``: what a user of the socket
  installs; ``logs``; ``failpoints``, at which tests kill the process.
- ``errors``; ``terminal``: what people see.
"""
