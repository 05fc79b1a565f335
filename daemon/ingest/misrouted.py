"""Whether producers place edges as they must."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from ...gpma.index.ids import IntColumn, concatenate_ids
from ..records.columns import UpdateColumns, canonical
from ..records.encodings import PLACED_BY_KEY
from ..records.placement import partition_of
from ..records.stream import Decoded, Partition, RawRecord, Source, UpdateBlock

log = logging.getLogger(__name__)

SAMPLED_EDGES = 8
"""How many edges of a record are checked to have come through their own partition."""


class PlacementSample:
    """Checks a few edges of each record against the partition in which producers must place them.

    Between two partitions there is no order: updates of one pair that come through both can end either way.
    """

    def __init__(self, source: Source, *, directed: bool) -> None:
        self._source = source
        self._directed = directed
        self._warned: set[Partition] = set()

    def misrouted(self, decoded: Sequence[Decoded]) -> int:
        """How many of the sampled edges belong to another partition; logged once for each partition."""
        by_topic: dict[str, list[tuple[RawRecord, UpdateBlock]]] = {}
        for item in decoded:
            placed = item.record.partition.number is not None and item.record.encoding not in PLACED_BY_KEY
            # Where keys of records name rows, producers place records by them.
            placed &= item.block is None or item.block.row_keys is None
            if placed and item.block is not None and len(item.block):
                by_topic.setdefault(item.record.partition.name, []).append((item.record, item.block))
        total = 0
        for topic, blocks in by_topic.items():
            n_partitions = self._source.partition_count(topic)
            if n_partitions > 1:
                total += self._misrouted(topic, blocks, n_partitions)
        return total

    def _misrouted(self, topic: str, blocks: Sequence[tuple[RawRecord, UpdateBlock]], n_partitions: int) -> int:
        rows = [_sampled(record, len(block)) for record, block in blocks]
        src = concatenate_ids([block.src[some] for (_, block), some in zip(blocks, rows, strict=True)])
        if not self._directed:
            dst = concatenate_ids([block.dst[some] for (_, block), some in zip(blocks, rows, strict=True)])
            ops = np.concatenate([block.ops[some] for (_, block), some in zip(blocks, rows, strict=True)])
            src = canonical(UpdateColumns(src, dst, ops)).src
        came_through = np.repeat([record.partition.number for record, _ in blocks], [some.size for some in rows])
        belongs_to = partition_of(src, n_partitions)
        wrong = np.flatnonzero(came_through != belongs_to)
        for number, owner in dict(
            zip(came_through[wrong].tolist(), belongs_to[wrong].tolist(), strict=True)
        ).items():
            if Partition(topic, number) not in self._warned:
                self._warned.add(Partition(topic, number))
                log.warning(
                    "%s/%d holds edges that belong to other partitions (one to %d): updates of one pair have no "
                    "order between partitions; producers must place edges by their src",
                    topic,
                    number,
                    owner,
                )
        return int(wrong.size)


def _sampled(record: RawRecord, n: int) -> IntColumn:
    """Which of n edges are checked: those of records that were read together are many records'."""
    sampled = SAMPLED_EDGES * (record.next_offset - record.offset)
    return np.arange(0, n, -(-n // sampled))
