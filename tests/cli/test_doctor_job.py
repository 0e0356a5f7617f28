"""What `kubectl tpujob doctor` finds that one job needs and does not have."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Run
from tests.cli.test_doctor import WELL
from tests.namespaced import Namespaced
from tpujob_operator.api.conditions import ConditionType, set_condition
from tpujob_operator.api.models import TPUTrainingJob, parse_job
from tpujob_operator.cli.checks import Check, Level
from tpujob_operator.cli.jobchecks import Around, Queue, examine_job
from tpujob_operator.cli.needs import CLAIM, PRIORITY_CLASS, SERVICE_ACCOUNT, Need, needs_of
from tpujob_operator.cli.render import rendered
from tpujob_operator.core.kinds import SECRET
from tpujob_operator.core.manifests.options import ManifestOptions

_EXAMPLE = Path(__file__).parents[2] / "examples" / "demo.yaml"
_CHIPS = 16


def _raw(**spec: Any) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(_EXAMPLE.read_text())
    raw["spec"] |= spec
    return raw


def _job(**spec: Any) -> TPUTrainingJob:
    return parse_job(_raw(**spec))


def _quota(chips: int) -> dict[str, Any]:
    hard = {"requests.google.com/tpu": str(chips)}
    return {"metadata": {"name": "chips"}, "status": {"hard": hard, "used": {}}}


def _cluster_queue(chips: int = _CHIPS, **more: Any) -> dict[str, Any]:
    resources = [{"name": "google.com/tpu", "nominalQuota": chips}]
    group = {"coveredResources": ["google.com/tpu"]}
    group["flavors"] = [{"name": "tpu", "resources": resources}]  # type: ignore[list-item]
    return {"spec": {"resourceGroups": [group]}} | more


def _flavor(**labels: str) -> dict[str, Any]:
    return {"spec": {"nodeLabels": {f"cloud.google.com/gke-tpu-{k}": v for k, v in labels.items()}}}


_LOCAL = {"spec": {"clusterQueue": "all"}}
_QUEUE = Queue(True, _LOCAL, _cluster_queue(), {"tpu": _flavor(accelerator="tpu-v5-lite-podslice")})
_STOPPED = {"type": "Active", "status": "False", "reason": "X", "message": "it is stopped"}


def test_a_job_that_can_run() -> None:
    """All it needs is there: nothing but good news."""
    around = Around(_job(queue="research", slices=1), queue=_QUEUE)
    found = list(examine_job(around, WELL))
    assert {check.level for check in found} == {Level.OK}
    assert {check.what for check in found} == {"its slices, v5e 2x4", "queue research"}


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"is_served": False}, Level.BAD, "no Kueue"),
        ({"local": {}}, Level.BAD, "no such LocalQueue"),
        ({"local": None}, Level.WARNING, "may not read"),
        ({"cluster": {}}, Level.BAD, "all does not exist"),
        ({"cluster": None}, Level.OK, "may not read"),
        ({"cluster": {"spec": {}}}, Level.BAD, "covers no google.com/tpu"),
        ({"cluster": _cluster_queue(status={"conditions": [_STOPPED]})}, Level.BAD, "stopped"),
        ({"cluster": _cluster_queue(8)}, Level.BAD, "asks for 16"),
        ({"cluster": _cluster_queue(8) | {"spec": {}}}, Level.BAD, "covers no"),
        ({"flavors": {}}, Level.BAD, "tpu does not exist"),
        ({"flavors": None}, Level.OK, "16 chips in flavor tpu"),
        ({"flavors": {"tpu": _flavor(accelerator="tpu-v5p-slice")}}, Level.BAD, "no flavor"),
        ({"flavors": {"tpu": _flavor(topology="4x4")}}, Level.BAD, "no flavor"),
        ({"flavors": {"tpu": {"spec": {}}}}, Level.OK, "16 chips in flavor tpu"),
    ],
)
def test_queues_are_followed(change: dict[str, Any], level: Level, words: str) -> None:
    """From LocalQueue to flavors, with who has to mend what."""
    queue = dataclasses.replace(_QUEUE, **change)
    around = Around(_job(queue="research"), queue=queue)
    (check,) = (check for check in examine_job(around, WELL) if check.what == "queue research")
    assert check.level is level
    assert words in f"{check.found} {check.advice}"
    assert bool(check.advice) is (level is not Level.OK)


def test_a_cohort_may_lend_chips() -> None:
    """What is above its own quota may be borrowed."""
    queue = _cluster_queue(8)
    queue["spec"]["cohortName"] = "everybody"
    around = Around(_job(queue="q"), queue=dataclasses.replace(_QUEUE, cluster=queue))
    (check,) = (check for check in examine_job(around, WELL) if check.what == "queue q")
    assert check.level is Level.OK


def test_missing_things_quotas_and_slices_are_told() -> None:
    """Each with its name."""
    gone, hidden = Need(CLAIM, "corpus"), Need(SECRET, "key")
    around = Around(_job(), needs=[gone, hidden], missing=[gone], unread=[hidden])
    cluster = dataclasses.replace(WELL, quotas=[_quota(8)])
    found = {check.what: check for check in examine_job(around, cluster)}
    assert found["PersistentVolumeClaim corpus"].level is Level.BAD
    assert "may not read Secret key" in found["what its pods name"].found
    assert "8 chips at most, and the job asks for 16" in found["quota chips"].found
    slices = found["its slices, v5e 2x4"]
    assert (slices.level, slices.found) == (Level.WARNING, "1 whole in the cluster, 2 wanted")


def test_words_of_the_operator_are_passed_on() -> None:
    """A job that is stalled says why already."""
    told = set_condition((), ConditionType.STALLED, True, "Why", "do this", now_ms=0)
    found = list(examine_job(Around(_job(), conditions=told), WELL))
    assert found[0] == Check(Level.BAD, "demo is Stalled", "Why", "do this")


def test_what_pods_name_is_read_off_the_objects() -> None:
    """Whether by volumes, variables or names; what may be missing and what is ours is left out."""
    raw = _raw(priorityClassName="urgent")
    trainer = raw["spec"]["trainer"]
    trainer["serviceAccountName"] = "reader"
    trainer["volumes"] += [
        {"name": "a", "secret": {"secretName": "certificate"}},
        {"name": "b", "secret": {"secretName": "perhaps", "optional": True}},
        {"name": "c", "projected": {"sources": [{"secret": {"name": "projected"}}]}},
    ]
    source = {"secretKeyRef": {"name": "token", "key": "k"}}
    trainer["env"].append({"name": "TOKEN", "valueFrom": source})
    objects = rendered(parse_job(raw), 1, ManifestOptions("", "operator", "trainer"))
    assert needs_of(objects) == [
        Need(CLAIM, "shared"),
        Need(PRIORITY_CLASS, "urgent"),
        Need(SECRET, "certificate"),
        Need(SECRET, "projected"),
        Need(SECRET, "token"),
        Need(SERVICE_ACCOUNT, "reader"),
    ]


@pytest.mark.control_plane
def test_jobs_are_looked_at_before_and_after_they_are_submitted(
    run: Run, there: Namespaced, tmp_path: Path
) -> None:
    """On the real API server: what is missing, and that it is there as soon as it is made."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(_raw(queue="research")))

    def told(*arguments: str) -> dict[str, Check]:
        status, said, _ = run("doctor", *arguments, "-o", "json")
        assert status == 1  # there is no operator
        return {check["what"]: Check(**check) for check in json.loads(said)}

    before = told("-f", str(path))
    assert before["PersistentVolumeClaim shared"].level == Level.BAD
    assert before["queue research"].found == "there is no Kueue in the cluster"
    assert run("submit", str(path))[0] == 0
    assert told("demo")["PersistentVolumeClaim shared"].level == Level.BAD
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "shared", "namespace": there.namespace}
    kind = {"apiVersion": CLAIM.api_version, "kind": CLAIM.kind}
    there.api.apply({**kind, "metadata": metadata, "spec": claim})
    after = told("demo")
    assert "PersistentVolumeClaim shared" not in after
    assert after["what its pods name"].level == Level.OK
