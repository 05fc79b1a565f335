"""The HTTP door: the socket's requests as JSON, what epochs change as server-sent events, and a page for people.

``connection`` is one client's, ``routes`` says what its requests mean, ``arguments`` reads their parameters,
``answers`` writes JSON, ``openapi`` describes it all, ``files`` are the page.
"""
