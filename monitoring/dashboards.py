"""Dashboards for Grafana, made with its own builders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model

from monitoring.panels import BOARDS, Board, Panel, Query, Shape
from tpujob_operator.core import families as f

_SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_TAG = "tpujob"
_Builder = timeseries.Panel | stat.Panel | bargauge.Panel
_WIDTHS = {Shape.NUMBER: 6, Shape.BARS: 12, Shape.CURVES: 12, Shape.STACK: 12}
_HEIGHTS = {Shape.NUMBER: 4, Shape.BARS: 8, Shape.CURVES: 8, Shape.STACK: 8}


def outputs() -> Iterator[tuple[str, str]]:
    """Name and content of each dashboard's file."""
    for board in BOARDS:
        encoded = JSONEncoder(sort_keys=True, indent=1).encode(_dashboard(board).build())
        yield f"{board.name}.json", encoded + "\n"


def _dashboard(board: Board) -> build.Dashboard:
    made = (
        build.Dashboard(board.title)
        .uid(f"tpujob-{board.name}")
        .description(board.about)
        .tags([_TAG])
        .readonly()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .link(_siblings())
        .with_variable(build.DatasourceVariable("datasource").type("prometheus"))
    )
    if board.of_job:
        for variable in _variables():
            made = made.with_variable(variable)
    for panel in board.panels:
        made = made.with_panel(_panel(panel))
    return made


def _siblings() -> build.DashboardLink:
    link = build.DashboardLink("TPU jobs").type(model.DashboardLinkType.DASHBOARDS)
    return link.tags([_TAG]).as_dropdown(True).include_vars(True).keep_time(True)


def _variables() -> Iterator[build.QueryVariable]:
    found = {
        "namespace": f"label_values({f.INFO.series}, namespace)",
        "job": f'label_values({f.INFO.series}{{namespace="$namespace"}}, job)',
    }
    for name, query in found.items():
        yield (
            build.QueryVariable(name)
            .query(query)
            .datasource(_SOURCE)
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.ALPHABETICAL_ASC)
        )


def _panel(panel: Panel) -> Builder[model.Panel]:
    made: _Builder = _SHAPES[panel.shape]()
    made = made.title(panel.title).unit(panel.unit).datasource(_SOURCE)
    for query in panel.queries:
        made = made.with_target(_target(query, is_instant=panel.shape is Shape.BARS))
    return made.span(_WIDTHS[panel.shape]).height(_HEIGHTS[panel.shape])


def _target(query: Query, *, is_instant: bool) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto")
    return target.instant() if is_instant else target


def _curves() -> timeseries.Panel:
    return timeseries.Panel().fill_opacity(5).show_points(common_model.VisibilityMode.NEVER)


def _stack() -> timeseries.Panel:
    stacking = common.StackingConfig().mode(common_model.StackingMode.NORMAL)
    return timeseries.Panel().fill_opacity(60).line_width(0).stacking(stacking)


def _number() -> stat.Panel:
    return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _bars() -> bargauge.Panel:
    return bargauge.Panel().orientation(common_model.VizOrientation.HORIZONTAL)


_SHAPES: dict[Shape, Callable[[], _Builder]] = {
    Shape.CURVES: _curves,
    Shape.STACK: _stack,
    Shape.NUMBER: _number,
    Shape.BARS: _bars,
}


def queries(content: str) -> list[tuple[str, str]]:
    """Panel title and expression of each query of a dashboard's file."""
    return [
        (panel["title"], target["expr"])
        for panel in json.loads(content)["panels"]
        for target in panel["targets"]
    ]
