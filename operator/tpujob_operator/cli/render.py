"""``kubectl tpujob render FILE``: the objects that the operator would apply, without a cluster."""

from __future__ import annotations

import argparse
import base64
import json
from typing import Any

import yaml

from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.api.spec import Preflight
from tpujob_operator.cli.files import read_jobs
from tpujob_operator.core.manifests import build, preflight, programs
from tpujob_operator.core.manifests.options import ManifestOptions

#: Stands for what only the API server knows.
_UID = "00000000-0000-0000-0000-000000000000"
_TOKEN = base64.b64encode(b"derived by the operator").decode()


def add(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "render", help="the objects that would be applied for a job, without a cluster"
    )
    parser.add_argument("file", metavar="FILE", help="a manifest with jobs; - is standard input")
    parser.add_argument("-n", "--namespace", help="of jobs that name none; default: default")
    parser.add_argument("-o", "--output", choices=["yaml", "json"], default="yaml")
    parser.add_argument("--attempt", type=int, default=1, help="number of the attempt; default: 1")
    parser.add_argument(
        "--operator-image", default="tpujob-operator", help="as the chart's image.reference"
    )
    parser.add_argument(
        "--trainer-image", default="tpujob-trainer", help="as the chart's trainer.image"
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Print the objects."""
    options = ManifestOptions("", given.operator_image, given.trainer_image)
    jobs = read_jobs(given.file, given.namespace)
    made = [thing for job in jobs for thing in rendered(job, given.attempt, options)]
    if given.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": made}, indent=1))
    else:
        print(yaml.safe_dump_all(made, sort_keys=False), end="")
    return 0


def rendered(job: TPUTrainingJob, attempt: int, options: ManifestOptions) -> list[dict[str, Any]]:
    """The objects of attempt and preflight, with stand-ins for the job's UID and its token."""
    meta = job.metadata.model_copy(update={"uid": job.metadata.uid or _UID})
    job = job.model_copy(update={"metadata": meta})
    objects = build(job, attempt=attempt, options=options)
    if job.spec.preflight is Preflight.COMPILE:
        objects.append(preflight.build(job, options))
        objects += filter(None, [programs.build(job, options)])
    return [_without_secrets(thing) for thing in objects]


def _without_secrets(thing: dict[str, Any]) -> dict[str, Any]:
    if thing["kind"] != "Secret":
        return thing
    return {**thing, "data": dict.fromkeys(thing["data"], _TOKEN)}
