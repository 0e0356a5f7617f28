"""How TPU capacity is bought, and how GKE tells its nodes apart.

Sources:

* [autoscaler] GKE's cluster autoscaler, ``cloudprovider/gke/labels`` (which selectors and
  tolerations make node pools, and which labels and taints their nodes have) and the bounds of a
  flex-start node's run time in its node auto-provisioning.
* [reservations] GKE, "Consuming reserved zonal resources": selectors of a reservation.
* [flex] GKE, "About flex-start provisioning": v3 and v4 are not offered.
* [annotator] kubernetes/cloud-provider-gcp, node annotator: the end of a VM's run time.
"""

from __future__ import annotations

import enum

SPOT_LABEL = "cloud.google.com/gke-spot"
PREEMPTIBLE_LABEL = "cloud.google.com/gke-preemptible"
FLEX_START_LABEL = "cloud.google.com/gke-flex-start"
MAX_RUN_LABEL = "cloud.google.com/gke-max-run-duration-seconds"
RESERVATION_LABEL = "cloud.google.com/reservation-name"
RESERVATION_PROJECT_LABEL = "cloud.google.com/reservation-project"
RESERVATION_AFFINITY_LABEL = "cloud.google.com/reservation-affinity"
#: Keys of taints as well.
TAINTED = (SPOT_LABEL, FLEX_START_LABEL)
#: Of a node whose machine has an end: when that is, RFC 3339.
TERMINATION_ANNOTATION = "node.gke.io/machine-termination-datetime"

#: Bounds of a flex-start node's run time in seconds: ten minutes and seven days.
FLEX_START_RUN_S = (600, 604_800)
NOT_BY_FLEX_START = ("v3", "v4")
#: Of the 30 s between a spot node's notice and its end, ordinary pods get these, whatever
#: their own grace period is (GKE, "Spot VMs").
SPOT_GRACE_S = 15


class Provisioning(enum.StrEnum):
    """How capacity is bought."""

    ON_DEMAND = "OnDemand"
    SPOT = "Spot"
    RESERVED = "Reserved"
    FLEX_START = "FlexStart"


#: Labels that only nodes bought in one way have.
BY_LABEL: dict[str, Provisioning] = {
    SPOT_LABEL: Provisioning.SPOT,
    PREEMPTIBLE_LABEL: Provisioning.SPOT,
    FLEX_START_LABEL: Provisioning.FLEX_START,
    RESERVATION_LABEL: Provisioning.RESERVED,
}
