"""Checked and compiled while it waits, by real kubelets: a job's first start compiles nothing."""

from __future__ import annotations

from typing import Any

import pytest

from faults.jobs import ROOT_FOLDER
from tests.e2e.rig import START_S, Jobs
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB, TPU_TRAINING_JOB

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def bundled(jobs: Jobs) -> dict[str, Any]:
    """The bundled trainer on two hosts of four CPU devices each."""
    folder = f"{ROOT_FOLDER}/{jobs.namespace}"
    return {
        "trainer": {
            "config": {
                "model": {"preset": "demo"},
                "mesh": {"fsdp": 4, "tensor": 2},
                "sequenceLength": 64,
                "steps": 3,
                "data": {"source": "stdlib", "directory": f"{folder}/data"},
                "checkpoint": {"keepPrograms": True},
            },
            "env": [
                {"name": "JAX_PLATFORMS", "value": "cpu"},
                {"name": "XLA_FLAGS", "value": "--xla_force_host_platform_device_count=4"},
            ],
            "volumes": [{"name": "shared", **jobs.target.volume}],
            "volumeMounts": [{"name": "shared", "mountPath": ROOT_FOLDER}],
        },
        "checkpoint": {"directory": f"{folder}/checkpoints"},
    }


def test_what_a_waiting_job_will_run_is_compiled(jobs: Jobs) -> None:
    """No compiler for TPUs in this image is told; the programs are there when hosts are."""
    jobs.create("holder", jobs.template("sh", "-c", "sleep 1000000"), slices=2)
    jobs.wait_status("holder", lambda status: bool(status.get("generation")), "no host is free")
    jobs.create("j", preflight="Compile", **bundled(jobs))
    told = jobs.wait_condition("j", "Preflight", "NotChecked", "False")
    assert "the TPU compiler is missing" in told

    def ended() -> dict[str, str]:
        made = jobs.find(JOB, "j-programs") or {}
        return {one["type"]: one["status"] for one in made.get("status", {}).get("conditions", [])}

    wait_until(lambda: {"Complete", "Failed"} & {*ended()}, "it has been compiled", START_S)
    [compiler] = jobs.pods("j", "programs").values()
    assert "Complete" in ended(), jobs.log(compiler)
    assert "train compiled in" in jobs.log(compiler)
    assert not jobs.status("j").get("generation"), "it waits still"
    jobs.delete(TPU_TRAINING_JOB, "holder")
    jobs.wait_state("j", "Succeeded", "Failed")
    leader, other = (jobs.log(jobs.pods("j")[f"j-1-slice-0-{host}"]) for host in (0, 1))
    assert "train step loaded from the cache" in leader, jobs.story("j")
    assert "compiling anew" not in other, jobs.story("j")
    assert "did not write it" not in other, jobs.story("j")
