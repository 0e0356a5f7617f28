"""A job that is being deleted: Kubernetes removes what it owns, nothing is left to us."""

from tpujob_operator.core.situation import NOTHING, Outcome, Situation


def leave_alone_while_deleting(situation: Situation) -> Outcome:
    """Do nothing more for a job that is on its way out."""
    if not situation.snapshot.is_deleting:
        return NOTHING
    return Outcome(is_final=True, keeps_status=True)
