"""What a chip costs an hour: defaults that everybody should replace by what they pay.

* [list] Cloud TPU, "Pricing": on-demand list prices in US regions, as of ``AS_OF``. Of v7 no
  price is known here.
* [sky] All of [list] are what SkyPilot's catalogue has from Google Cloud's SKUs for a slice in
  us-central1 (v4: us-central2), divided by its chips: skypilot-org/skypilot-catalog,
  catalogs/v8/gcp/vms.csv at commit 006059e. Elsewhere they are higher: v3 is 2.20 in europe-west4.
* [book] "How to Scale Your Model", part 8, has v5p and v5e from Google's page in February 2025.
* [dws] Dynamic Workload Scheduler, "Pricing": flex-start is half the on-demand price.
* Spot prices change monthly and by region, reservations by their term: the shares below are the
  middle of what Google Cloud names (60-70 % off; 15, 25 and 40 % off for 1, 3 and 12 months).
"""

from __future__ import annotations

from collections.abc import Mapping

from tpujob_tpu.provisioning import Provisioning

AS_OF = "2025-11"

#: USD per chip-hour by generation and way of provisioning, as users give them.
Prices = Mapping[str, Mapping[Provisioning, float]]

#: USD per chip-hour on demand [list, sky; v5e and v5p: book].
ON_DEMAND_USD: Mapping[str, float] = {
    "v3": 2.00,
    "v4": 3.22,
    "v5e": 1.20,
    "v5p": 4.20,
    "v6e": 2.70,
}
#: Price of the other ways as a share of the on-demand price.
SHARES: Mapping[Provisioning, float] = {
    Provisioning.ON_DEMAND: 1.0,
    Provisioning.SPOT: 0.35,
    Provisioning.RESERVED: 0.60,
    Provisioning.FLEX_START: 0.50,
}


def usd_per_chip_hour(
    accelerator: str, provisioning: Provisioning, own: Prices | None = None
) -> float | None:
    """Price of one chip for an hour; None: not known.

    Args:
        accelerator: Name of the generation.
        provisioning: How the chip is bought.
        own: Prices that replace the defaults. Where only ``OnDemand`` is given, the other ways
            take their usual share of it.
    """
    given = (own or {}).get(accelerator, {})
    if provisioning in given:
        return given[provisioning]
    on_demand = given.get(Provisioning.ON_DEMAND, ON_DEMAND_USD.get(accelerator))
    return None if on_demand is None else on_demand * SHARES[provisioning]
