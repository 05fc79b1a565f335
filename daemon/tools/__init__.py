"""Commands for people, behind ``cli``: produce, query, doctor, demo, and what demo and documents are made with.

They may import every room, but not ``service``, which needs none of them either.
"""
