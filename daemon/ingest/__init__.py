"""From the source to the engine's door: records are read, decoded, given dense vertices, and queued.

It imports ``config``, ``records`` and what is below them. It knows neither the engine that takes from its
queue, nor who answers queries or writes checkpoints.
"""
