"""The page that lists all metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tpujob_agent.protocol import CoordinatorConfig
from tpujob_coordinator.core import Core
from tpujob_coordinator.metrics import CoreCollector
from tpujob_operator.core.families import OF_JOBS, OF_OPERATOR, Family, MetricKind
from tpujob_operator.core.timetypes import DESCRIPTIONS

_HEAD = """\
# Metrics

Operator and coordinators serve `/metrics` in Prometheus' text format: the operator at port
`metrics` of its Service, each job's coordinator at port `http` (7078) of its pod. The labels
`namespace` and `job` name the training job. Scrape the operator with `honor_labels: true`, and
coordinators without it, with `job` from the pod's label `tpujob.dev/job`: anybody who may create
pods can give one the labels of a coordinator, and let it say anything of any job. The chart
brings monitors for the Prometheus Operator (`monitoring.monitors.enabled`), and rules with
alerts (`monitoring.rules.enabled`), which the [runbook](runbook.md) explains; and dashboards for
Grafana (`monitoring.dashboards.enabled`). Without it, scrape by the pods' `prometheus.io`
annotations; rules and dashboards are in `charts/tpujob-operator/files`.

Neither asks for a token. The operator's metrics name the jobs of all namespaces: the chart's
NetworkPolicy lets in its own namespace and `networkPolicy.metricsFrom`, see
[security](security.md).

Series of a job go with the job. Their counters are kept in its status, so that they go on after
a restart of the operator as if nothing had happened.

No metric names a leader, because there is none to elect: one operator runs at a time (one
replica, which ends before the next begins). `tpujob_operator_queue_depth` is there while it
runs; the alert `TPUJobOperatorDown` tells when it is not.
"""


_BOARDS = """\
## Dashboards

Fleet, job, recovery, hosts and operator: `charts/tpujob-operator/files/dashboards`. The pictures
are of a job of two hosts whose trainer was killed once; those of hosts, of the demo, whose
trainers compare themselves on a busy machine. They are drawn with Grafana's own panels by
`python -m monitoring.pictures ADDRESS --namespace N --job J` (it needs Node and npm).

![The dashboard of one job](images/dashboards/job.png)
![The dashboard of its recovery](images/dashboards/recovery.png)
![The dashboard of its hosts](images/dashboards/hosts.png)
![The dashboard of all jobs](images/dashboards/fleet.png)
![The dashboard of the operator](images/dashboards/operator.png)
"""


def page(note: str) -> str:
    """The page as Markdown."""
    types = [f"| `{kind.value}` | {text} |" for kind, text in DESCRIPTIONS.items()]
    parts = [
        f"<!-- {note} -->",
        _HEAD.rstrip(),
        "## Of jobs, from the operator",
        _table(OF_JOBS),
        "## Types of time",
        "\n".join(["| type | what it is |", "| --- | --- |", *types]),
        "## Of the operator",
        _table(OF_OPERATOR),
        "## Of a job's coordinator",
        _table(of_coordinator()),
        _BOARDS.rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def of_coordinator() -> Iterator[Family]:
    """What a coordinator serves, read off one that has just begun."""
    config = CoordinatorConfig(
        "n", "j", attempt=1, slices=1, spares=0, hosts_per_slice=1, budgets={}
    )
    for metric in CoreCollector(Core(config, "epoch", 0)).collect():
        labels = tuple(getattr(metric, "_labelnames", ()))  # samples may be missing
        yield Family(metric.name, MetricKind(metric.type), metric.documentation, labels)


def _table(families: Iterable[Family]) -> str:
    rows = [
        f"| `{family.series}` | {family.kind.value} "
        f"| {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in families
    ]
    return "\n".join(
        ["| Metric | Kind | Labels | What it is |", "| --- | --- | --- | --- |", *rows]
    )
