"""What travels between rooms, and what is written to sources: records, updates, offsets, questions about edges.

Data, protocols and formats, without threads or sockets. Of the daemon it imports nothing else.
"""
