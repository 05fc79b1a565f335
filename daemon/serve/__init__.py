"""Answers: results in shared memory, the query server, and the metrics endpoint.

``server`` runs in a process of its own, with ``connection``, ``methods`` and ``serving`` below it;
``supervisor`` is the daemon's end, with ``server_process`` and ``engine_answers``. It imports ``config``,
``records``, the client's ``wire`` and ``addresses`` and what is below them; of the engine it knows only the
questions in ``records.topology``.
"""
