"""Metrics by what they tell of: each module declares its own, and takes plain numbers for them.

``ops.metrics`` puts them together.
"""
