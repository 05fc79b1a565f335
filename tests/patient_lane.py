"""For query servers of tests: they wait for their lane as long as a busy machine needs."""

from __future__ import annotations

from waiting import PATIENCE_S

from graphtide.daemon.serve import lane

lane.PATIENCE_S = PATIENCE_S
