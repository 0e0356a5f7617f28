"""Names fit into what Kubernetes and JobSet allow, and agree with what JobSet makes of them."""

from __future__ import annotations

import string
import uuid

from hypothesis import given
from hypothesis import strategies as st

from tpujob_operator.api.models import MAX_NAME
from tpujob_operator.core.manifests import names

_LABEL = 63  # DNS label; JobSet counts the five random characters of a pod's name too
_JOB_NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=MAX_NAME)
_NUMBERS = st.integers(min_value=0, max_value=9999)


@given(job=_JOB_NAMES, attempt=_NUMBERS, slice_index=_NUMBERS, host=_NUMBERS)
def test_every_name_fits(job: str, attempt: int, slice_index: int, host: int) -> None:
    """With any admitted job name and numbers of four digits, no name exceeds a DNS label."""
    worker = f"{names.slice_job(job, attempt, slice_index)}-{host}-abcde"
    coordinator = f"{names.coordinator_job(job, attempt)}-0-abcde"
    uid = str(uuid.UUID(int=attempt))
    secret = names.token_secret(job, uid, "0a1b2c3d")
    others = (names.coordinator_service(job, uid), secret)
    assert max(map(len, (worker, coordinator, *others))) <= _LABEL


@given(job=_JOB_NAMES, attempt=_NUMBERS, slice_index=_NUMBERS, host=_NUMBERS)
def test_worker_hosts(job: str, attempt: int, slice_index: int, host: int) -> None:
    """A worker's DNS name is its pod's hostname below the JobSet's headless service."""
    hostname = f"{names.slice_job(job, attempt, slice_index)}-{host}"
    expected = f"{hostname}.{names.jobset(job, attempt)}"
    assert names.worker_host(job, attempt, slice_index, host) == expected


def test_labels_of_objects_without_attempt() -> None:
    """Objects that outlive attempts carry no attempt, and only pods a role."""
    assert set(names.labels("j")) == {"app.kubernetes.io/managed-by", "tpujob.dev/job"}
    assert names.labels("j", 0)["tpujob.dev/attempt"] == "0"
