"""What a user of the socket installs: two clients, their results, and the protocol without its sockets.

It imports the daemon's errors, NumPy and MessagePack, and nothing else of graphtide. Of the daemon's other
rooms only ``tools`` use the clients; the server uses ``wire`` and ``addresses``.
"""
