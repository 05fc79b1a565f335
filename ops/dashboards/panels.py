"""What every dashboard is made of: panels, the queries that they ask, and how rows of them become Grafana's model.

Every query is restricted to the chosen instances. A test asks a real Prometheus each of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

WIDTH = 24
HEIGHT = 8
RATES = ("ops", "reqps", "cps")
"""Units of how often something happens in a second."""


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, and how its series are named."""

    expression: str
    legend: str = ""

    @property
    def unit(self) -> str:
        """Grafana's name of what it comes to, by the names of its metrics, which end in their units."""
        a_second = "rate(" in self.expression
        if " / " in self.expression:
            return "short"
        if self.expression.startswith(("histogram_quantile", "time()", "(time()")):
            return "s"
        if re.search(r"_seconds(_total|_sum)?\{", self.expression):
            return "percentunit" if a_second else "s"
        if re.search(r"_bytes(_total)?\{", self.expression):
            return "Bps" if a_second else "bytes"
        if "_ratio{" in self.expression:
            return "percentunit"
        return RATES[0] if a_second else "short"


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """One graph. ``unit`` is Grafana's name of it; ``log``: a logarithmic axis.

    Queries that come to something else have an axis of their own, on the right.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    log: bool = False
    stacked: bool = False


def series(name: str, labels: str = "") -> str:
    inner = ", ".join(filter(None, ['instance=~"$instance"', labels]))
    return f"graphtide_{name}{{{inner}}}"


def age(name: str, by: str = "") -> str:
    """Seconds since the newest of such times; nothing while there is none, of which metrics say 0."""
    grouped = f" by ({by})" if by else ""
    return f"time() - max{grouped} ({series(name)} > 0)"


def rate(name: str, by: str = "", labels: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({series(name, labels)}[$__rate_interval]))"


def quantile(share: float, name: str, by: str = "") -> str:
    inner = f"sum by ({', '.join(filter(None, ['le', by]))}) (rate({series(f'{name}_bucket')}[$__rate_interval]))"
    return f"histogram_quantile({share}, {inner})"


def percentiles(name: str, by: str = "") -> tuple[Query, ...]:
    label = f" {{{{{by}}}}}" if by else ""
    return tuple(Query(quantile(share, name, by), f"p{share * 100:g}{label}") for share in (0.5, 0.99))


def rates(
    title: str, description: str, unit: str, name: str, by: str, legend: str = "", *, stacked: bool = False
) -> PanelSpec:
    """How fast one counter grows, by a label or several. ``legend``: default the label."""
    return PanelSpec(
        title, description, unit, (Query(rate(name, by), legend or f"{{{{{by}}}}}"),), stacked=stacked
    )


def sums(title: str, description: str, unit: str, name: str, by: str) -> PanelSpec:
    """One gauge by a label."""
    return PanelSpec(title, description, unit, (Query(f"sum by ({by}) ({series(name)})", f"{{{{{by}}}}}"),))


DEVICE_MEMORY = PanelSpec(
    "Device memory",
    "What the daemon has taken on the device, and what it may (device.memory).",
    "bytes",
    (
        Query(f"sum({series('device_memory_held_bytes')})", "held"),
        Query(f"sum({series('device_memory_limit_bytes')})", "limit"),
    ),
)


def build(title: str, uid: str, description: str, rows: Mapping[str, tuple[PanelSpec, ...]]) -> models.Dashboard:
    """A dashboard as Grafana's model: rows of panels by their titles."""
    dashboard = (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["graphtide"])
        .readonly()
        .timezone("browser")
        .refresh("10s")
        .time("now-30m", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_instance_variable())
    )
    number = itertools.count(1)
    for row, panels in rows.items():
        dashboard = dashboard.with_row(builders.Row(row).id(next(number)))
        # Six panels stand in two lines of three, four in one line.
        width = WIDTH // (4 if len(panels) == 4 else 3)
        for panel in panels:
            dashboard = dashboard.with_panel(_panel(panel).id(next(number)).span(width).height(HEIGHT))
    return dashboard.build()


def _datasource() -> models.DataSourceRef:
    return models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def _instance_variable() -> builders.QueryVariable:
    return (
        builders.QueryVariable("instance")
        .label("Instance")
        .datasource(_datasource())
        .query("label_values(graphtide_build_info, instance)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(spec: PanelSpec) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(spec.title)
        .description(spec.description)
        .datasource(_datasource())
        .unit(spec.unit)
        .fill_opacity(20 if spec.stacked else 5)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    if spec.stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if spec.log:
        scale = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        panel = panel.scale_distribution(scale)
    else:
        panel = panel.min(0)
    for position, query in enumerate(spec.queries):
        id = chr(ord("A") + position)
        target = prometheus.Dataquery().expr(query.expression).range().ref_id(id)
        panel = panel.with_target(target.legend_format(query.legend or spec.title))
        if query.unit != spec.unit and not {query.unit, spec.unit} <= {*RATES}:
            own = {"unit": query.unit, "custom.axisPlacement": "right"}
            panel = panel.override_by_query(id, [models.DynamicConfigValue(*item) for item in own.items()])
    return panel
