"""Epochs: what was prepared is applied, computed, audited and published.

It imports ``ingest`` (what was prepared), ``serve`` (where it publishes), ``state`` (its checkpoints) and what
is below them.
"""
