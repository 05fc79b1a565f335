"""Settings: each is declared once, in ``settings``, the query server's limits among them.

``load`` fills them and ``show`` prints them. It imports ``records.encodings`` and ``client.addresses``, and
``compute`` where programs are named.
"""
