"""When rows move between host and device, which, and how many in an epoch.

After each epoch its measures come in, and what is to move before the next one goes out. Reasons, by urgency:

- **headroom**: under ``SPARE_MIN`` of the device's memory is free. Rows leave until ``SPARE`` is.
- **request**: an operator wants it. Whatever one of the others would do is done without its threshold.
- **balance**: over 64 epochs storage on one side took longer than that on the other, and programs after it, by a
  fifth. Rows go to the other side, so many that by the measured rates both end together, if that saves a
  twentieth.
- **room**: over ``ROOM_MIN`` is free, and not even used for speed alone. Rows come until ``ROOM`` is, but no more
  than the device can apply in time.
- **gain**: an exchange of rows would save 1.2 times its cost within 256 epochs, by the least that is sure of how
  often they are read.

All but the first look at whole windows of measures, which begin anew when rows have moved. Moves take a
twentieth of the time at most: one epoch moves as many edges as that pays for, by what moves took so far. But
it moves no fewer than so many that the fixed cost of a move is half of what it takes; what is over the share
is made up for by epochs that move nothing. Rows that moved stay for 64 epochs. A turn, that is rows going the
other way than those before (but for headroom), waits for as many epochs. Each turn doubles that, until there
has been none for long. An exchange that has not paid when the next is looked for doubles the time to the one
after. So a load that changes to and fro, whatever its period, moves ever less.

Nothing here reads a clock, and all passes over vertices are the same every time: equal measures, equal decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .classes import CLASSES, DEVICE, NO_LIMIT, Bytes, RowAges, Stock, Survey
from .division import SPARE, SPARE_MIN
from .gains import Exchange, Worth, best_exchange, bus_seconds
from .measures import BUDGET, WINDOW, Mean, Measures, MoveCost, Reads, Window
from .moves import EDGES_LEAST, EDGES_MAX, Decision, Move, Moves, Plan, Reason, plan
from .placement import HOST
from .policies import DEFAULT, KEY_BYTES, POLICIES, Floats, cost
from .waits import LOOK_MIN, Exchanges, Looks, Relief, Turns

ROOM_MIN, ROOM = 0.3, 0.25
"""The share of the device's memory that is free before rows come, and after."""
APART = 1.2
HORIZON = 256
PAYS = 1.2

# Fewer seconds of an epoch, or fewer of all edges, are not worth a move.
_SAVED_MIN, _EDGES_MIN = 0.05, 0.01
_EXCHANGE_MIN = 0.01
# A plan may have rows for which so many epochs' budgets must be saved.
_LONG_ROW = 64
# What moves took too long is made up for, but not for longer than so many epochs.
_DEBT = 1024
# What is thought at first: seconds to move an edge, bytes that one takes, how many times longer the host applies.
_MOVE_S, _EDGE_BYTES, _HOST_SLOWER = 1e-7, 20.0, 30.0
_EDGE_BYTES_MIN, _EDGE_BYTES_MAX = 8.0, 40.0
_DECISIONS = 64


class Rebalancer:
    """Of a graph with one device."""

    def __init__(self, stock: Callable[[], Stock], policy: str = DEFAULT) -> None:
        """``stock``: whose the rows are now; asked when something is decided. ``policy``: of ``POLICIES``."""
        self.ages = RowAges()
        """To be told of the rows that an epoch changes; see ``RowAges``."""
        self.newcomers = DEVICE
        """The side that is to have new vertices: the host since headroom was short, until there is room."""
        self._stock = stock
        self._policy = POLICIES[policy]
        self._epoch = 0
        self._last: Measures | None = None
        self._window = Window(WINDOW)
        self._epoch_s, self._remote_s = Mean(), Mean()
        self._reads = Reads()
        self._move_cost = MoveCost(_MOVE_S, EDGES_LEAST)
        self._purse_s = 0.0
        self._turns, self._exchanges, self._looks = Turns(), Exchanges(), Looks()
        self._plan: Plan | None = None
        self._moving: Decision | None = None
        self._decisions: deque[Decision] = deque(maxlen=_DECISIONS)
        self._relief: Relief | None = None
        self._patient_until = 0
        self._known: Stock | None = None
        self._looked: Survey | None = None
        self._shares = np.zeros(CLASSES)
        self._host_slower = _HOST_SLOWER
        self._requested = self._frozen = False

    # -- what is asked from outside -------------------------------------------------------------------------------

    @property
    def decisions(self) -> list[Decision]:
        """The newest 64, oldest first; copies."""
        return [replace(decision) for decision in self._decisions]

    @property
    def frozen(self) -> bool:
        return self._frozen

    def freeze(self) -> None:
        """Nothing moves any more but by ``evict``; what is under way stops where it is. Harmless to repeat."""
        self._frozen = True
        self._drop()

    def thaw(self) -> None:
        """Rows move again, by what is measured from now on; harmless where they do."""
        if self._frozen:
            self._frozen = False
            self._restart()

    def request(self) -> None:
        """Rebalance without thresholds and waits, within the budgets: after the next epoch, when what is under way
        is over, nothing is frozen, and looks for requests before it have taken no more than their share of the
        time. Several before that are one."""
        self._requested = True

    def budget(self) -> int:
        """How many edges may move after this epoch; 0 while what moved before is to be made up for."""
        return self._affordable(self._purse_s) if self._purse_s > 0 else 0

    def observe(self, measures: Measures) -> Moves | None:
        """What is to move before the next epoch; the moves of one epoch must be over by its next ``observe``."""
        if self._relief is not None:
            measures = measures._replace(device_bytes=self._relief.held(measures))
        self._see(measures)
        if self._frozen:
            return None
        if self._plan is not None and _is_overtaken(self._plan.decision, measures.headroom):
            self._drop()
        if self._is_short(measures):
            self._leave(measures)
        elif self._plan is None:
            self._decide(measures)
        return self._hand_out()

    def refused(self) -> None:
        """The last moves found no memory: what was decided is dropped, and rows stay on the host for a while."""
        self._drop()
        if self._moving is not None:
            self._moving.state = "dropped"
        self._turns.took(HOST, self._epoch)
        self.newcomers = HOST

    def evict(self, bytes_needed: int) -> Move | None:
        """What leaves at once where the device has no memory for a batch; None: it has no rows with edges. New
        vertices are the host's from now on.

        So many rows that as many bytes are free, and ``SPARE`` of the device's memory by what was last measured,
        beyond any budget. Where they are not enough, those that moved lately leave, too.
        """
        self._drop()
        self.newcomers = HOST
        edges = bytes_needed / self._edge_bytes()
        if self._last is not None:
            edges = max(edges, self._edges_to_leave(self._last))
        for rested in (True, False):
            survey = self.ages.survey(self._stock(), NO_LIMIT, rested=rested)
            price = self._policy(survey.classes(self._reads.mean))
            leaving = survey.listed(DEVICE, price, edges)
            if leaving.edges.sum() >= edges:
                break
        if leaving.vertices.size == 0:
            return None
        n = int(leaving.edges.sum())
        why = f"no memory on the device for {bytes_needed:,} bytes"
        self._moving = Decision(self._epoch, "evict", why, n, 0, n * self._move_cost.mean_s, state="done")
        self._decisions.append(self._moving)
        self._turns.took(HOST, self._epoch)
        self._restart()
        if self._last is not None:
            self._relieve(self._last)
        self.ages.moved(leaving.vertices)
        return Move(leaving.vertices, HOST, "evict", n)

    def take_classes(self) -> Bytes | None:
        """The class of each vertex (uint8[n]), to count reads by until the next ones; None: they are as they were.

        They are told after a look at all vertices, and are of the rows as these were then.
        """
        looked, self._looked = self._looked, None
        return None if looked is None else looked.of_vertices()

    # -- decisions ------------------------------------------------------------------------------------------------

    def _see(self, measures: Measures) -> None:
        self._epoch += 1
        self._last = measures
        self.ages.advance()
        self._window.see(measures)
        self._epoch_s.see(measures.seconds)
        self._remote_s.see(measures.remote_s)
        self._exchanges.see(measures)
        self._looks.see(measures.seconds)
        self._move_cost.see(measures.moved_s, measures.moved_edges)
        self._earn(measures)
        if measures.reads is not None:
            others = measures.other_reads * self._shares  # as if all rows were read alike
            self._reads.see(measures.reads + others)
        if self._moving is not None:
            self._moving.moved_edges += measures.moved_edges
            self._moving.moved_s += measures.moved_s
        if self._relief is not None and self._epoch - self._relief.epoch >= WINDOW:
            self._relief = None
        if self._window.is_full:
            host_s, device_s = self._apply_rates(measures)
            self._host_slower = host_s / device_s if device_s > 0 else self._host_slower
        if measures.headroom < SPARE_MIN:
            self.newcomers = HOST
        if measures.headroom > ROOM_MIN:
            self.newcomers = DEVICE

    def _is_short(self, measures: Measures) -> bool:
        if measures.headroom >= SPARE_MIN or measures.device_edges == 0 or self._epoch < self._patient_until:
            return False
        return self._plan is None or self._plan.decision.reason != "headroom"

    def _leave(self, measures: Measures) -> None:
        self._drop()
        why = f"{measures.headroom:.1%} of the device's memory is free"
        self._begin("headroom", why, self._survey(), leaving=self._edges_to_leave(measures))
        if self._plan is None:  # all that are there have just come
            self._patient_until = self._epoch + LOOK_MIN
        else:
            self._relieve(measures)

    def _relieve(self, measures: Measures) -> None:
        self._relief = Relief(self._epoch, measures.device_bytes, measures.device_edges, self._edge_bytes())

    def _decide(self, measures: Measures) -> None:
        # By how many there were at the last look: to ask for the rows is a pass over all of them, too.
        if self._requested and self._looks.take(0 if self._known is None else self._known.owner.size):
            self._requested = False
            self._fulfil(measures)
        elif self._window.is_full:
            self._balance(measures)
            if self._plan is None:
                self._fill(measures)
        if self._plan is None and self._known is None and self._may_look(measures):
            self._survey()  # from now on it can be counted which rows are read
            self._exchanges.looked()
        elif self._plan is None and self._exchanges_pay(measures):
            survey = self._survey()
            least_s = PAYS * 2 * self._move_cost.mean_s / HORIZON
            exchange = self._best_exchange(survey, least_s)
            self._exchanges.looked()
            if exchange.gain_s >= _EXCHANGE_MIN * self._epoch_s.value:
                self._exchange("gain", survey, exchange)

    def _fulfil(self, measures: Measures) -> None:
        survey = self._survey()
        leaving, coming = self._edges_to_leave(measures), self._edges_that_fit(measures)
        if leaving > 0:
            self._begin("request", f"{measures.headroom:.1%} is free", survey, leaving=leaving)
        elif coming > 0 and measures.host_edges > 0:
            self._begin("request", f"{measures.unused:.1%} is free", survey, coming=coming)
        else:
            self._exchange("request", survey, self._best_exchange(survey, 0.0))

    def _balance(self, measures: Measures) -> None:
        window, edges = self._window, (measures.host_edges, measures.device_edges)
        slow = DEVICE if window.apply_s[DEVICE] > window.apply_s[HOST] else HOST
        fast = 1 - slow
        others_s = window.apply_s[fast] + window.programs_s
        if window.updates == 0 or window.apply_s[slow] <= APART * others_s or edges[slow] == 0:
            return
        slow_rate, fast_rate = self._apply_rates(measures)[slow], self._apply_rates(measures)[fast]
        moving = (window.apply_s[slow] - others_s) / (slow_rate + fast_rate)
        if fast == DEVICE:
            moving = min(moving, -self._edges_to_leave(measures))
        if moving * slow_rate < _SAVED_MIN * window.seconds or not self._turns.allow(fast, self._epoch):
            return
        names = ("the host", "the device")
        why = f"{names[slow]} applied for {window.apply_s[slow]:.3g} s, all else took {others_s:.3g} s"
        amounts = {"coming" if fast == DEVICE else "leaving": moving}
        self._begin("balance", why, self._survey(), **amounts)

    def _fill(self, measures: Measures) -> None:
        if measures.unused <= ROOM_MIN or not self._turns.allow(DEVICE, self._epoch):
            return
        coming = min(self._edges_that_fit(measures), measures.host_edges)
        window, rates = self._window, self._apply_rates(measures)
        if sum(rates) > 0:
            spare_s = window.apply_s[HOST] + window.programs_s - window.apply_s[DEVICE]
            coming = min(coming, spare_s / sum(rates))
        edges = measures.host_edges + measures.device_edges
        if coming > 0 and coming >= min(measures.host_edges, _EDGES_MIN * edges):
            why = f"{measures.unused:.1%} of the device's memory is free"
            self._begin("room", why, self._survey(), coming=coming)

    def _may_look(self, measures: Measures) -> bool:
        """Whether there are rows to exchange, and time to look for the first time."""
        return min(measures.host_edges, measures.device_edges) > 0 and self._exchanges.is_due(0)

    def _exchanges_pay(self, measures: Measures) -> bool:
        """Whether they may: rows are read over the bus, and there is time to look."""
        if 0 in (measures.host_edges, measures.device_edges) or self._known is None:
            return False
        return self._remote_s.value > 0 and self._exchanges.is_due(self._known.owner.size)

    def _best_exchange(self, survey: Survey, least_s: float) -> Exchange:
        bus_s = bus_seconds(survey.classes(self._reads.mean), survey.edges[HOST], self._remote_s.value)
        host, device = (self._worth(survey, reads, bus_s) for reads in self._reads.bounds())
        return best_exchange(survey.movable, host, device, least_s)

    def _worth(self, survey: Survey, reads: Floats | None, bus_s: float) -> Worth:
        classes = survey.classes(reads)
        return Worth(self._policy(classes), KEY_BYTES * bus_s * cost(classes))

    def _exchange(self, reason: Reason, survey: Survey, exchange: Exchange) -> None:
        if exchange.edges:
            why = f"{exchange.edges:,} edges of each side are better on the other"
            self._begin(reason, why, survey, leaving=exchange.edges, coming=exchange.edges, gain_s=exchange.gain_s)
            if self._plan is not None:
                self._exchanges.begin(self._remote_s.value, self._plan.decision.predicted_s)

    def _apply_rates(self, measures: Measures) -> tuple[float, float]:
        """Seconds of the window for an edge of the host, and of the device; of who had none, what is thought."""
        host, device = (
            seconds / edges if edges else 0.0
            for seconds, edges in zip(
                self._window.apply_s, (measures.host_edges, measures.device_edges), strict=True
            )
        )
        return host or device * self._host_slower, device or host / self._host_slower

    def _edge_bytes(self) -> float:
        """Of the device's memory, for an edge."""
        last = self._last
        if last is None or last.device_edges == 0:
            return _EDGE_BYTES
        return min(max(last.device_bytes / last.device_edges, _EDGE_BYTES_MIN), _EDGE_BYTES_MAX)

    def _edges_to_leave(self, measures: Measures) -> float:
        """How many edges must leave until ``SPARE`` of the device's memory is free; below 0: may come."""
        return (SPARE - measures.headroom) * measures.device_limit / self._edge_bytes()

    def _edges_that_fit(self, measures: Measures) -> float:
        """How many may come until ``ROOM`` is left of what nobody uses."""
        return (measures.unused - ROOM) * measures.device_limit / self._edge_bytes()

    def _survey(self) -> Survey:
        longest = _LONG_ROW * self._affordable(BUDGET * self._epoch_s.value)
        self._known = self._stock()
        self._looked = self.ages.survey(self._known, min(EDGES_MAX, longest))
        edges = self._looked.edges.sum(axis=0)
        self._shares = edges / max(1, int(edges.sum()))
        return self._looked

    def _affordable(self, seconds: float) -> int:
        cost = self._move_cost
        return min(EDGES_MAX, max(EDGES_LEAST, int(cost.portion), int(seconds / cost.mean_s)))

    def _earn(self, measures: Measures) -> None:
        """What may be spent on moves: a share of each epoch, saved for a long row only, less what was spent."""
        share_s = BUDGET * self._epoch_s.value
        next_edges = self._plan.next_edges if self._plan is not None else 0
        most_s = max(share_s, (next_edges + 1) * self._move_cost.mean_s)
        self._purse_s = max(-_DEBT * share_s, min(self._purse_s + share_s - measures.moved_s, most_s))

    # -- what was decided -----------------------------------------------------------------------------------------

    def _begin(
        self,
        reason: Reason,
        why: str,
        survey: Survey,
        *,
        leaving: float = 0,
        coming: float = 0,
        gain_s: float = 0.0,
    ) -> None:
        """Decide that so many edges leave the device or come to it, as far as there are some that may."""
        least, most = (self._policy(survey.classes(reads)) for reads in self._reads.bounds())
        out = survey.listed(DEVICE, most, leaving)
        back = survey.listed(HOST, -least, coming)
        to_host, to_device = int(out.edges.sum()), int(back.edges.sum())
        if to_host + to_device == 0:
            return
        predicted_s = (to_host + to_device) * self._move_cost.mean_s
        decision = Decision(self._epoch, reason, why, to_host, to_device, predicted_s, gain_s)
        self._decisions.append(decision)
        self._plan = plan(decision, out if to_host else None, back if to_device else None)
        if not (to_host and to_device):
            self._turns.took(HOST if to_host else DEVICE, self._epoch)

    def _hand_out(self) -> Moves | None:
        if self._plan is None:
            return None
        moves = self._plan.take(self.budget())
        if moves:
            self._moving = self._plan.decision
        for move in moves:
            self.ages.moved(move.vertices)
        if self._plan.is_over:
            self._plan.decision.state = "done"
            self._end()
        return moves or None

    def _drop(self) -> None:
        if self._plan is not None:
            self._plan.decision.state = "dropped"
            self._end()

    def _end(self) -> None:
        assert self._plan is not None
        if self._relief is not None:
            self._relief = self._relief._replace(epoch=self._epoch)
        self._plan = None
        self._restart()

    def _restart(self) -> None:
        """Rows have moved: what was measured before says little."""
        self._window.restart()
        self._exchanges.epochs = 0


def _is_overtaken(decision: Decision, headroom: float) -> bool:
    """Whether the device's memory has become as free, or as short, as rows were to make it, or worse."""
    if decision.reason == "headroom":
        return headroom > ROOM
    return decision.to_host == 0 and headroom < SPARE
