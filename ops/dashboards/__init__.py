"""Grafana dashboards: Python sources (with Grafana's foundation SDK), and the JSON that they write.

``python -m graphtide.ops.dashboards`` writes the JSON anew; a test keeps the two equal. Importing this package
needs no SDK: what operators install is the JSON.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent


def render() -> dict[str, str]:
    """The text of every dashboard by file name."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    from . import overview, placement
    from .panels import build

    what = "Freshness, lag, epochs, programs, graph and queries of graphtide daemons."
    of_rows = "Which rows are on which side, what each side does, what moves and why."
    dashboards = {
        "overview.json": build("graphtide", "graphtide-overview", what, overview.ROWS),
        "placement.json": build(
            "graphtide: placement and rebalancing", "graphtide-placement", of_rows, placement.ROWS
        ),
    }
    return {
        name: json.dumps(dashboard, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for name, dashboard in dashboards.items()
    }
