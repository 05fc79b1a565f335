"""Checkpoints: made while epochs go on, and written so that a crash at any moment leaves a whole one.

It imports ``records`` and what is below it, and reads the graph, the index and the programs that it is given.
"""
