"""What the operator remembers of a job between two passes."""

from __future__ import annotations

from tests.core.histories import loss
from tests.core.stories import told
from tests.core.world import START_MS, job_object
from tpujob_operator.core.views import PodView
from tpujob_operator.shell.jobstate import JobState


def test_an_incident_is_on_the_node_that_kubernetes_names() -> None:
    """A coordinator only repeats what a job's program says, which may blame any node."""
    state = JobState.of(job_object())
    for node in ("a", ""):  # also once the pod is gone
        pods = [PodView(namespace="ns", name="p", uid="u", node=node)] if node else []
        state.see(pods)
    state.take(told(loss(START_MS, START_MS, pod="p", node="b")))
    assert [incident.node for incident in state.history.incidents.newest] == ["a"]


def test_an_incident_of_an_unknown_pod_is_on_no_node() -> None:
    """Nobody but the job's program has ever spoken of it."""
    state = JobState.of(job_object())
    state.take(told(loss(START_MS, START_MS, pod="p", node="b")))
    assert [incident.node for incident in state.history.incidents.newest] == [""]
