"""How many chips a job holds, for its ledger."""

from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, fact

_OVER = ("Succeeded", "Failed")


def note_held_chips(situation: Situation) -> Outcome:
    """Tell the ledger when the number of chips changes that pods of the job keep from others."""
    ledger = situation.history.ledger
    if ledger.ended:
        return NOTHING
    pods = (pod for pod in situation.snapshot.pods if pod.is_worker and pod.node)
    hosts = sum(1 for pod in pods if pod.phase not in _OVER)
    chips = hosts * situation.job.shape.chips_per_host
    if chips == ledger.chips.held:
        return NOTHING
    return Outcome(facts=(fact(situation, FactKind.CHIPS_HELD, chips=chips),))
