"""What users get wrong: refused at once where that can be, else told in words and not looped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from faults.jobs import ROOT_FOLDER
from localcluster.kubeapi import ApiError
from tests.e2e.rig import START_S, Jobs, assert_adds_up
from tpujob_operator.core.kinds import JOB_SET, TPU_TRAINING_JOB

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_DEMO = Path(__file__).parents[2] / "examples" / "demo.yaml"


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("j", {"topology": "4x5"}, "nearest are"),
        ("j", {"topology": "3x5"}, "do not divide into hosts"),
        ("j", {"slices": 0}, "greater than or equal to 1"),
        ("j" * 50, {}, "may have at most"),
        ("j", {"template": {"spec": {"containers": []}}}, "at least 1"),
    ],
    ids=["topology", "chips", "slices", "name", "containers"],
)
def test_bad_jobs_are_refused_at_once(
    jobs: Jobs, name: str, changes: dict[str, Any], words: str
) -> None:
    """The CRD that the chart has installed refuses them and says what is wrong."""
    template = jobs.template("true")
    with pytest.raises(ApiError, match=words):
        jobs.create(name, **{"template": template, **changes})
    assert jobs.all(TPU_TRAINING_JOB) == []


_FAILING = """
import os, pathlib
folder = pathlib.Path(os.environ["FOLDER"])
folder.mkdir(parents=True, exist_ok=True)
with (folder / ("starts-" + os.environ["JAX_PROCESS_ID"])).open("a") as file:
    file.write("start\\n")
print("reading the corpus", flush=True)
raise SystemExit("no such file: corpus.txt")
"""


def test_program_that_fails_at_once_fails_the_job(jobs: Jobs) -> None:
    """Exit 1 at once: Failed with the program's own words after its own budget, and no loop."""
    program = jobs.template("python", "-c", _FAILING)
    jobs.create("j", program, recovery={"budgets": {"userError": 2}})
    message = jobs.wait_condition("j", "Failed", "BudgetSpent")
    assert "no such file: corpus.txt" in message
    status = jobs.status("j")
    assert status["state"] == "Failed"
    assert {incident["cause"] for incident in status["incidents"]} == {"userError"}
    assert status["budgets"]["userError"] == {"used": 3, "limit": 2}
    assert status["budgets"]["infrastructure"]["used"] == 0
    assert status["generation"] == 3
    assert_adds_up(status)
    jobs.wait_gone(JOB_SET, "j")
    if jobs.cluster is not None:
        [folder] = jobs.cluster.shared_dir.glob(f"**/{jobs.namespace}")
        starts = {path.name: len(path.read_text().split()) for path in folder.glob("starts-*")}
        # The one that fails first takes the other down, perhaps before its first line.
        assert sum(starts.values()) >= 3
        assert max(starts.values()) <= 3


def test_missing_image_is_told_in_words(jobs: Jobs) -> None:
    """A job whose image cannot be pulled is Stalled, and says which image and what to check."""
    jobs.create("j", jobs.template("python", "-c", "pass", image="images.invalid/missing:1"))
    message = jobs.wait_condition("j", "Stalled", "ImageUnavailable")
    assert "images.invalid/missing:1" in message
    assert "imagePullSecrets" in message
    assert jobs.status("j")["state"] in ("Pending", "Starting")


def test_missing_program_is_told_in_words(jobs: Jobs) -> None:
    """A command that is not in the image fails the job, and says so."""
    jobs.create("j", jobs.template("trian.py"), recovery={"budgets": {"userError": 0}})
    message = jobs.wait_condition("j", "Failed", "BudgetSpent")
    assert "cannot run 'trian.py': it does not exist in this image" in message


def test_checkpoint_directory_that_cannot_be_written_is_named(jobs: Jobs) -> None:
    """The bundled trainer fails before it trains, in a sentence that names the directory."""
    trainer = yaml.safe_load(_DEMO.read_text())["spec"]["trainer"]
    trainer["config"] |= {"mesh": {"fsdp": 8}, "data": {"source": "stdlib", "directory": "/data"}}
    trainer["volumes"] = [
        {"name": "shared", **jobs.target.volume},
        {"name": "data", "emptyDir": {}},
    ]
    trainer["volumeMounts"] = [
        {"name": "shared", "mountPath": ROOT_FOLDER, "readOnly": True},
        {"name": "data", "mountPath": "/data"},
    ]
    directory = f"{ROOT_FOLDER}/checkpoints"
    jobs.create(
        "j",
        trainer=trainer,
        checkpoint={"directory": directory},
        recovery={"budgets": {"userError": 0}},
    )
    message = jobs.wait_condition("j", "Failed", "BudgetSpent", limit_s=START_S)
    assert f"checkpoint directory {directory} is not writable" in message
    jobs.wait_gone(JOB_SET, "j")
