"""``python -m graphtide.ops.kafka``: run a development Kafka until interrupted."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from . import DevKafka, KafkaUnavailable


def main() -> int:
    """Start the node, say where it listens, and stop it in order on SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m graphtide.ops.kafka", description=__doc__)
    parser.add_argument("--port", type=int, default=9092, help="where clients connect (default 9092)")
    parser.add_argument("--topic", action="append", default=[], help="make this topic; may be repeated")
    parser.add_argument("--partitions", type=int, default=4, help="partitions of each topic (default 4)")
    options = parser.parse_args()
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    try:
        with DevKafka(port=options.port) as kafka:
            for topic in options.topic:
                kafka.create_topic(topic, options.partitions)
            print(f"Kafka listens on {kafka.bootstrap} (log: {kafka.log}); Ctrl-C ends it", flush=True)
            interrupted.wait()
    except KafkaUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
