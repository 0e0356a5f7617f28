"""Specs that admission could not refuse."""

from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, fact


def refuse_invalid_spec(situation: Situation) -> Outcome:
    """End a job whose spec cannot be run before it starts; let one that runs already go on."""
    error = situation.snapshot.spec_error
    if not error:
        return NOTHING
    if situation.attempt:
        message = f"{error}. The job goes on as it was started; correct the spec."
        return Outcome(
            verdicts={ConditionType.STALLED: Verdict(True, reasons.INVALID_SPEC, message)},
            is_final=True,
        )
    message = f"{error}. Nothing was started: delete the job, correct the spec, create it again."
    verdict = Verdict(True, reasons.INVALID_SPEC, message)
    return Outcome(
        facts=(fact(situation, FactKind.FAILED),),
        verdicts={ConditionType.FAILED: verdict, ConditionType.STALLED: verdict},
        is_final=True,
    )
