"""Alerts, each with what a person who is called by it should know and do."""

from __future__ import annotations

from typing import Any, NamedTuple

from monitoring.rules import BURNS, BY_JOB, ON_JOB, RECOVERY_MEAN, Burn, badput, grown
from tpujob_operator.core import families as f

RUNBOOK = "docs/runbook.md"
#: From the coordinators; see the detector there.
_SLOWDOWN = "tpujob_host_slowdown_ratio"
_ACTIVE = f'{f.INFO.series}{{state=~"Starting|Running|Recovering"}}'


class Alert(NamedTuple):
    """One alert; ``meaning`` and ``action`` make its section of the runbook."""

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    meaning: str
    action: str

    def rule(self) -> dict[str, Any]:
        """The alert as Prometheus reads it."""
        url = f"{RUNBOOK}#{self.name.lower()}"
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.action,
                "runbook_url": url,
            },
        }


_WHERE = "{{ $labels.namespace }}/{{ $labels.job }}"
_PERCENT = "{{ $value | humanizePercentage }}"
_DURATION = "{{ $value | humanizeDuration }}"


def _burn(burn: Burn) -> Alert:
    limit = f"{ON_JOB} {burn.threshold}"
    over = [f"{badput(window)} > {limit}" for window in (burn.long, burn.short)]
    return Alert(
        f"TPUJobGoodputBurn{burn.name.capitalize()}",
        f"({over[0]}) and {ON_JOB} ({over[1]})",
        "2m",
        burn.severity,
        f"{_WHERE} wasted {_PERCENT} of the last {burn.long}",
        f"Over {burn.long}, and still over {burn.short}, the job wasted more time than "
        f"{burn.factor:g} times what its goodput objective allows (never called below the "
        f"objective, always above {100 * burn.cap:.0f} % of the time). Waiting in a queue and "
        "suspension do not count. Jobs without `spec.objectives.goodput` never call.",
        "Look at which type of time grew (`kubectl tpujob report`, or the job's dashboard). "
        "`provisioning`: there are no nodes. `rollback`: save more often, or find what kills the "
        "job in `status.incidents`. `compile`: shapes change from step to step. `input_wait`: "
        "the data comes too slowly. `checkpoint_stall`: storage is slow.",
    )


def _no_progress() -> Alert:
    quiet = f"time() - {f.LAST_PROGRESS.series} > clamp_min(20 * {f.STEP_TIME.series}, 900)"
    waits = f'sum {BY_JOB} ({f.TIME.series}{{type!~"suspended|queued|provisioning"}}) > 1800'
    never = f"{waits} unless {ON_JOB} {f.LAST_PROGRESS.series}"
    return Alert(
        "TPUJobNoProgress",
        f"(({quiet}) or ({never})) and {ON_JOB} {_ACTIVE}",
        "1m",
        "critical",
        f"{_WHERE} has finished no step for {_DURATION}",
        "The job is meant to train, and has finished no step for a quarter of an hour and twenty "
        "of its own steps, or none at all in the half hour since its pods had nodes.",
        "Read the conditions: `kubectl describe tpujob`. Stalled names what stands in the way. "
        "If the job recovers again and again, `status.incidents` tells the cause of each. If it "
        "seems to train, the coordinator's log says what it waits for.",
    )


_WANTED_MFU = f'{f.OBJECTIVE.series}{{objective="mfu"}}'
_HANGS = f'{f.INCIDENTS.series}{{cause="hang"}}'
_OPEN_HANGS = f'{f.OPEN_INCIDENTS.series}{{cause="hang"}}'
_RECENT_RECOVERY = (
    grown(f'{f.RECOVERY.name}_sum{{stage="total"}}', "1h")
    + " / ("
    + grown(f'{f.RECOVERY.name}_count{{stage="total"}}', "1h")
    + " > 0)"
)

_OF_JOBS = (
    _no_progress(),
    Alert(
        "TPUJobLowMFU",
        f"{f.MFU.series} < {ON_JOB} "
        f"(max {BY_JOB} ({_WANTED_MFU}) or {ON_JOB} (0 * {f.MFU.series} + 0.5))",
        "10m",
        "warning",
        f"{_WHERE} uses {_PERCENT} of its chips' peak",
        "Model FLOPs utilisation has been below `spec.objectives.mfu` (0.5 where none is given) "
        "for ten minutes.",
        "Is `input_wait` large? Use ArrayRecord and more prefetching. Is the batch per chip "
        "small, or remat on everything? Try `tpujob-trainer check` on the same slice. Does it "
        "fall past 128 chips? Look at the mesh against the topology. Slow since a moment? "
        "See TPUJobStraggler.",
    ),
    Alert(
        "TPUJobStraggler",
        f"max by (namespace, job, host, signal) ({_SLOWDOWN}) > 1.1",
        "5m",
        "warning",
        f"Host {{{{ $labels.host }}}} of {_WHERE} is {{{{ $value }}}} times as slow as its peers",
        "One host has kept the others waiting for five minutes; the label `signal` says by what.",
        "`arrival`: it comes late to its steps. Look at its data source, its CPU, pauses of "
        "Python's garbage collector and its saves. `device`: its own chips are slow; cordon the "
        "node, and let `health.straggler.action: Replace` move the pod. `network`: its links are.",
    ),
    Alert(
        "TPUJobHang",
        f"{grown(_HANGS, '1h')} > 0 or sum {BY_JOB} ({_OPEN_HANGS}) > 0",
        "0m",
        "warning",
        f"{_WHERE} has hung",
        "Within the last hour no host made progress for longer than its steps explain, and the "
        "trainers were started again.",
        "The incident in status names the suspect host and holds the stacks. Twice on one node: "
        "the node. Twice at one place in the program: a collective that not every rank enters.",
    ),
    Alert(
        "TPUJobRecoverySlow",
        f"({_RECENT_RECOVERY} > {ON_JOB} (2 * {RECOVERY_MEAN})) > 60",
        "0m",
        "warning",
        f"{_WHERE} took {_DURATION} to recover",
        "Recoveries of the last hour took more than a minute, and twice as long as this job's "
        "recoveries usually do.",
        "The histogram `tpujob_recovery_duration_seconds` says which stage: `replacement` (nodes "
        "or images), `start` (compilation: is the cache on a shared volume?), `restore` "
        "(storage), `detection`.",
    ),
    Alert(
        "TPUJobBudgetNearlySpent",
        f"{f.BUDGET_USED.series} >= 0.8",
        "0m",
        "warning",
        f"{_WHERE} has spent {_PERCENT} of its budget {{{{ $labels.budget }}}}",
        "When a restart budget is spent, the next loss of that kind ends the job.",
        "Find the cause in `status.incidents`. If the restarts are worth it, raise "
        "`spec.recovery.budgets`: it may change while the job runs.",
    ),
    Alert(
        "TPUJobUnattributedTime",
        f'sum {BY_JOB} ({f.TIME.series}{{type="unattributed"}})'
        f" / sum {BY_JOB} ({f.TIME.series}) > 0.01",
        "0m",
        "info",
        f"{_PERCENT} of the life of {_WHERE} has no explanation",
        "More than a hundredth of the job's time could not be given a type: worlds ended while "
        "nobody could see it.",
        "Was coordinator or operator down for long? Does the job have no agent (`recovery.pods: "
        "Recreate`), and has it lost pods? Else it is a defect: keep the coordinator's log and the "
        "status, and report it.",
    ),
    *(_burn(burn) for burn in BURNS),
)

_FAILED = f'{f.API_CALLS.series}{{code=~"0|429|5.."}}'
_OF_OPERATOR = (
    Alert(
        "TPUJobOperatorDown",
        f"absent({f.QUEUE_DEPTH.series})",
        "5m",
        "critical",
        "Nobody hears of the tpujob operator",
        "Prometheus has had no metrics of the operator for five minutes. Jobs go on and recover in "
        "place; lost pods are not replaced, and status stands still.",
        "`kubectl -n tpujob-system get pods` and the log of the previous container. If it runs, "
        "look at the monitor's labels and at network policies.",
    ),
    Alert(
        "TPUJobOperatorWithoutLeader",
        f"sum({f.LEADER.series}) < 1",
        "2m",
        "critical",
        "No replica of the tpujob operator acts",
        "Replicas run, and none of them holds the Lease. Jobs go on and recover in place; lost "
        "pods are not replaced, and status stands still.",
        "The replicas' logs say why the Lease cannot be reached: the API server is away, or slower "
        "than half of `TPUJOB_LEASE_RENEW_DEADLINE_S`, or the right to it is missing. "
        "`kubectl -n tpujob-system get lease`.",
    ),
    Alert(
        "TPUJobOperatorBlind",
        f"{f.WATCH_AGE.series} > 300",
        "1m",
        "critical",
        "The tpujob operator has not seen the cluster for {{ $value | humanizeDuration }}",
        "Listings and watches of some kind of object have failed for that long.",
        "Look at the operator's log for what the API server answers, at the server's health, and "
        "at `tpujob_operator_api_calls_total` by code.",
    ),
    Alert(
        "TPUJobOperatorStuck",
        f"{f.QUEUE_AGE.series} > 60",
        "5m",
        "warning",
        "A job has waited {{ $value | humanizeDuration }} for a worker of the operator",
        "Passes over jobs take too long, or there are too few workers.",
        "Is `tpujob_operator_reconcile_duration_seconds` high? Then the API server is slow. "
        "Else raise the chart's `workers`.",
    ),
    Alert(
        "TPUJobOperatorApiErrors",
        f"sum(rate({_FAILED}[10m])) / sum(rate({f.API_CALLS.series}[10m])) > 0.1",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the operator's API calls fail",
        "The API server refuses or does not answer more than a tenth of the operator's calls.",
        "429: priority and fairness, or other clients flood the server. 5xx and 0: the server "
        "or the way to it.",
    ),
    Alert(
        "TPUJobCoordinatorUnreadable",
        f"{f.SILENT.series} > 0",
        "5m",
        "warning",
        "The operator cannot read {{ $value }} coordinators",
        "Coordinators run and do not answer the operator: status, goodput and metrics of their "
        "jobs stand still. Training is not affected.",
        "See which jobs are Degraded: the message of the condition says what to do. "
        "CoordinatorUnreachable: the coordinator's log, and whether a network policy keeps the "
        "operator from port 7078. CoordinatorRefuses, KeyUnknown: a Secret has been changed.",
    ),
)

ALERTS = (*_OF_JOBS, *_OF_OPERATOR)


def runbook(note: str) -> str:
    """The runbook as Markdown: a section for each alert."""
    parts = [f"<!-- {note} -->", "# Runbook", "What each alert means, and what to do."]
    for alert in ALERTS:
        parts += [
            f"## {alert.name}",
            f"*{alert.severity}, after {alert.lasts}*",
            alert.meaning,
            f"**What to do.** {alert.action}",
            f"```promql\n{alert.expr}\n```",
        ]
    return "\n\n".join(parts) + "\n"
