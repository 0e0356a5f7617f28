"""What a job has cost: the chips it held, by a price table."""

from __future__ import annotations

from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.api.status import Cost
from tpujob_operator.core.history import History
from tpujob_tpu.prices import Prices, usd_per_chip_hour
from tpujob_tpu.provisioning import BY_LABEL, Provisioning

_MS_PER_HOUR = 3_600_000


def provisioning_of(job: TPUTrainingJob) -> Provisioning:
    """How the job's chips are bought: as it says, else as far as its node selector tells."""
    if job.spec.provisioning:
        return job.spec.provisioning.model
    pod = job.spec.template.spec.to_json() if job.spec.template else {}
    selector = pod.get("nodeSelector") or {}
    found = (way for label, way in BY_LABEL.items() if selector.get(label, "false") != "false")
    return next(found, Provisioning.ON_DEMAND)


def cost_view(history: History, now_ms: int, job: TPUTrainingJob, own: Prices) -> Cost:
    """Chip-hours, and money where the price is known.

    Tokens of steps that had to be done again were paid for and are worth nothing: the price of
    a million tokens counts those that were kept.
    """
    hours = history.ledger.view(now_ms).chip_ms / _MS_PER_HOUR
    price = usd_per_chip_hour(job.spec.accelerator.value, provisioning_of(job), own)
    usd = None if price is None else hours * price
    kept = history.progress.tokens - history.progress.tokens_lost
    return Cost(
        chip_hours=round(hours, 4),
        usd=None if usd is None else round(usd, 4),
        usd_per_million_tokens=round(1e6 * usd / kept, 4) if usd is not None and kept else None,
    )
