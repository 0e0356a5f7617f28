"""From a snapshot to a plan: ordered policies over immutable data, no clock, no client."""

from __future__ import annotations

from collections.abc import Callable

from tpujob_operator.core import status
from tpujob_operator.core.plan import Plan
from tpujob_operator.core.policies.admission import follow_queue, report_admission
from tpujob_operator.core.policies.ahead import compile_ahead
from tpujob_operator.core.policies.attempts import (
    ask_for_quota_anew,
    begin_first_attempt,
    restart_changed_attempt,
    restart_failed_attempt,
)
from tpujob_operator.core.policies.chips import note_held_chips
from tpujob_operator.core.policies.completion import (
    fail_after_deadline,
    fail_beyond_budgets,
    fail_when_given_up,
    succeed_when_done,
)
from tpujob_operator.core.policies.dead_nodes import clear_dead_pods
from tpujob_operator.core.policies.deletion import leave_alone_while_deleting
from tpujob_operator.core.policies.finished import clear_after_finished, keep_end
from tpujob_operator.core.policies.health import replace_stragglers, report_findings
from tpujob_operator.core.policies.lost_pods import blame_lost_pods, replace_broken_jobs
from tpujob_operator.core.policies.notices import explain_lost_hosts, tell_coordinator
from tpujob_operator.core.policies.objectives import report_goodput, report_mfu
from tpujob_operator.core.policies.objects import (
    ensure_objects,
    report_refusals,
    wait_for_jobset_kind,
)
from tpujob_operator.core.policies.placement import move_attempt, watch_suspects
from tpujob_operator.core.policies.preflight import judge_preflight, run_preflight
from tpujob_operator.core.policies.progress import (
    note_bound_pods,
    report_missing_hosts,
    report_restart,
    report_silent_coordinator,
    report_training,
)
from tpujob_operator.core.policies.recreation import note_running_pods, restart_lost_world
from tpujob_operator.core.policies.suspension import follow_suspend
from tpujob_operator.core.policies.trouble import (
    report_pods_that_cannot_start,
    report_unschedulable,
)
from tpujob_operator.core.policies.unmade import report_silent_jobset, report_unmade_pods
from tpujob_operator.core.policies.validation import refuse_invalid_spec
from tpujob_operator.core.situation import Outcome, Situation, earliest
from tpujob_operator.core.snapshot import Snapshot

Policy = Callable[[Situation], Outcome]

#: The order is the priority: a final outcome ends the pass.
POLICIES: tuple[Policy, ...] = (
    clear_dead_pods,
    leave_alone_while_deleting,
    clear_after_finished,
    refuse_invalid_spec,
    keep_end,
    note_held_chips,
    succeed_when_done,
    fail_when_given_up,
    fail_beyond_budgets,
    fail_after_deadline,
    follow_suspend,
    follow_queue,
    wait_for_jobset_kind,
    begin_first_attempt,
    judge_preflight,
    blame_lost_pods,
    note_running_pods,
    restart_lost_world,
    explain_lost_hosts,
    watch_suspects,
    restart_failed_attempt,
    restart_changed_attempt,
    ask_for_quota_anew,
    move_attempt,
    ensure_objects,
    report_admission,
    replace_broken_jobs,
    replace_stragglers,
    note_bound_pods,
    report_pods_that_cannot_start,
    report_unmade_pods,
    report_silent_jobset,
    report_refusals,
    report_unschedulable,
    report_restart,
    report_training,
    report_goodput,
    report_mfu,
    report_findings,
    report_missing_hosts,
    report_silent_coordinator,
    tell_coordinator,
    run_preflight,
    compile_ahead,
)


def decide(snapshot: Snapshot, now_ms: int) -> Plan:
    """What is to be done about a job, at ``now_ms``.

    Carrying out the plan and deciding again gives an empty plan: that is how
    the operator knows that it is done.
    """
    situation = _begin(snapshot, now_ms)
    for policy in POLICIES:
        situation = situation.after(policy(situation))
        if situation.is_final:
            break
    written = status.Written() if situation.keeps_status else status.write(situation)
    return Plan(
        history=situation.history,
        memory=situation.memory,
        actions=situation.actions,
        status=written.status,
        notes=(*situation.notes, *written.notes),
        requeue_after_s=earliest(situation.requeue_after_s, written.requeue_after_s),
    )


def _begin(snapshot: Snapshot, now_ms: int) -> Situation:
    return Situation(
        snapshot=snapshot,
        history=snapshot.history,
        memory=snapshot.memory,
        now_ms=now_ms,
        attempt=snapshot.attempt,
    )
