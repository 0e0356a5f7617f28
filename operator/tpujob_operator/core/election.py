"""Who holds a Lease, as one candidate sees it: data in, data out.

Wall clocks of two machines differ, so the times that stand in a Lease decide nothing. A candidate
counts on its own clock since when it has seen the Lease unchanged, as client-go does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tpujob_operator.api.base import rfc3339
from tpujob_operator.core.kinds import LEASE

#: A released Lease still needs a duration above zero.
_RELEASED_S = 1


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseTiming:
    """How long a Lease holds without a renewal, and when its holder renews it."""

    duration_s: float = 10.0
    renew_deadline_s: float = 7.0  # the holder writes nothing after this time without a renewal
    retry_s: float = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Sighting:
    """What a candidate knows of a Lease, and since when it has not changed."""

    version: str = ""
    holder: str = ""
    duration_s: float = 0.0
    since_s: float = 0.0

    def then(self, lease: Mapping[str, Any] | None, now_s: float) -> Sighting:
        """What is known after another look; a Lease that is gone still has to expire."""
        if lease is None or lease["metadata"]["resourceVersion"] == self.version:
            return self
        spec = lease.get("spec") or {}
        return Sighting(
            version=lease["metadata"]["resourceVersion"],
            holder=str(spec.get("holderIdentity") or ""),
            duration_s=float(spec.get("leaseDurationSeconds") or 0),
            since_s=now_s,
        )

    def remaining_s(self, now_s: float) -> float:
        """Seconds until others may take the Lease; 0: at once."""
        return max(0.0, self.since_s + self.duration_s - now_s) if self.holder else 0.0


def manifest(namespace: str, name: str) -> dict[str, Any]:
    """A Lease that nobody holds and that does not exist yet."""
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": {}}


def held(
    lease: Mapping[str, Any], identity: str, timing: LeaseTiming, wall_ms: int
) -> dict[str, Any]:
    """The Lease as its holder writes it, to take it or to renew it."""
    spec = lease.get("spec") or {}
    is_mine = spec.get("holderIdentity") == identity
    now = _micro_time(wall_ms)
    return {
        **lease,
        "spec": {
            **spec,
            "holderIdentity": identity,
            "leaseDurationSeconds": math.ceil(timing.duration_s),
            "acquireTime": spec["acquireTime"] if is_mine else now,
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (not is_mine),
        },
    }


def released(lease: Mapping[str, Any], wall_ms: int) -> dict[str, Any]:
    """The Lease as its holder leaves it: free for anybody at once."""
    now = _micro_time(wall_ms)
    spec = {
        **(lease.get("spec") or {}),
        "holderIdentity": "",
        "leaseDurationSeconds": _RELEASED_S,
        "renewTime": now,
    }
    return {**lease, "spec": spec}


def _micro_time(wall_ms: int) -> str:
    return f"{rfc3339(wall_ms).removesuffix('Z')}000Z"  # the API asks for six digits
