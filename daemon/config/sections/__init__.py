"""The tables of settings, one module for those that belong together, the query server's limits among them.

Each table is a ``Section``: its docstring, and the descriptions of its fields, are what ``docs/configuration.md``
says of it.
"""
