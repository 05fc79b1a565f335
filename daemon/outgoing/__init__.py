"""Changed results on their way out: to a Kafka topic or to files, a transaction for each epoch.

``records`` says what is written, ``sink`` what a place to write to must promise, ``view`` how published results
are read, and ``writer`` is the thread that takes what changed from the one to the other.
"""
