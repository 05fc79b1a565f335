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

    from . import overview

    dashboards = {"overview.json": overview.build()}
    return {
        name: json.dumps(dashboard, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for name, dashboard in dashboards.items()
    }
