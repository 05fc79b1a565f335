"""What a checkpoint keeps of the leaders of partitions."""

from __future__ import annotations

from kafka import TopicPartition

from graphtide.daemon.ingest.leader_epochs import KEPT_MAX, LeaderEpochs
from graphtide.daemon.records.stream import Partition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


def test_of_each_position_it_is_known_who_led_before_it() -> None:
    """Also of those that are not read any more: a checkpoint is behind."""
    leaders = LeaderEpochs()
    assert leaders.at(P, 7) is None and leaders.state == b""
    for position, epoch in ((5, 2), (6, 2), (9, 3), (9, -1), (12, 3), (20, 7), (21, 6)):
        leaders.note(P, position, epoch)
    assert [leaders.at(P, position) for position in (4, 5, 8, 9, 19, 20, 99)] == [None, 2, 2, 3, 3, 7, 7]
    assert leaders.at(Q, 99) is None


def test_a_restart_knows_it_of_where_it_goes_on() -> None:
    leaders = LeaderEpochs()
    for position, epoch in ((5, 2), (9, 3), (20, 7)):
        leaders.note(P, position, epoch)
    leaders.note(Q, 4, 1)
    again = LeaderEpochs()
    again.restore(leaders.state, {Partition("t", 0): 10, Partition("t", 1): 3, Partition("other", 0): 1})
    assert (again.at(P, 10), again.at(Q, 3)) == (3, None)
    again.note(P, 21, 8)
    third = LeaderEpochs()
    third.restore(again.state, {Partition("t", 0): 12})
    assert third.at(P, 12) == 3
    third.restore(b"", {Partition("t", 0): 12})  # of a checkpoint from before, or of load
    assert third.at(P, 12) is None


def test_of_many_leaders_the_newest_are_kept() -> None:
    leaders = LeaderEpochs()
    for epoch in range(3 * KEPT_MAX):
        leaders.note(P, 10 * epoch, epoch)
    assert leaders.at(P, 10 * (2 * KEPT_MAX) - 1) is None and leaders.at(P, 10 * (2 * KEPT_MAX)) == 2 * KEPT_MAX
