"""Settings: each is declared once, in a module of ``sections``; ``settings`` puts them together.

``load`` fills them and ``show`` prints them. It imports ``records.encodings`` and ``client.addresses``, and
``compute`` where programs are named.
"""
