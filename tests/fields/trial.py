"""One job that runs, whose spec is changed and changed back."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from localcluster.kubeapi import ApiError, Object
from tests.api.mutations import Case
from tests.fields.expected import Effect, effect_of
from tests.fields.world import Family, World
from tests.waiting import PATIENCE_S
from tpujob_operator.api import reasons
from tpujob_operator.core.kinds import JOB, JOB_SET, POD, SECRET, SERVICE, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.manifests.names import ATTEMPT_LABEL

_T = TypeVar("_T")
_REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
#: Children of a job of one slice of one host: of coordinator and slice each.
_CHILDREN = {JOB_SET: 1, JOB: 2, POD: 2, SERVICE: 1, SECRET: 1}
WRONG = "wrong"
_AT_ADMISSION = "refused at admission"
ENDED = "ends the job, as it says"
#: Outcomes of changes that the API server has taken.
ANSWERS = (*(effect.value for effect in Effect), ENDED)
#: A message of a condition has more to say than such a word.
_SHORTEST = "InvalidSpec"


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of one case."""

    case: str
    outcome: str
    answer_s: float = 0.0  # until the effect, or the condition, was there
    problem: str = ""


class Actor:
    """Plays one case after the other, with one job for each spec that cases begin with."""

    def __init__(self, world: World, name: str, limit_s: float = PATIENCE_S) -> None:
        self._world = world
        self._name = name
        self._limit_s = limit_s
        self._trials: dict[str, _Trial] = {}
        self._made = 0

    def play(self, case: Case) -> Result:
        """Play a case; a job that is not as before afterwards is not used again."""
        key = json.dumps(case.before, sort_keys=True)
        try:
            if key not in self._trials:
                self._trials[key] = self._begin(case)
            result = self._trials[key].play(case)
        except (AssertionError, ApiError, OSError) as error:
            result = Result(case.name, WRONG, problem=f"{type(error).__name__}: {error}"[:4000])
        if result.outcome in (WRONG, ENDED) and key in self._trials:
            self._trials.pop(key).remove()
        return result

    def _begin(self, case: Case) -> _Trial:
        self._made += 1
        name = f"{self._name}-{self._made}"
        self._world.place.submit(case.body(name, changed=False))
        return _Trial(self._world, name, self._limit_s)


class _Trial:
    """One job, which is changed and changed back."""

    def __init__(self, world: World, name: str, limit_s: float) -> None:
        self._world = world
        self._name = name
        self._limit_s = limit_s
        self._path = TPU_TRAINING_JOB.path(world.place.namespace, name)
        self._before: Settled | None = None

    def play(self, case: Case) -> Result:
        """Change the job and change it back."""
        before = self._before = self._before or self._wait(settled, "children", PATIENCE_S)
        old = self._world.place.find(TPU_TRAINING_JOB, self._name)
        assert old is not None
        try:
            new = self._replace(case.after)
        except ApiError as error:
            if error.status not in _REFUSALS or "spec" not in str(error):
                raise
            return Result(case.name, _AT_ADMISSION)
        begun, effect = time.monotonic(), effect_of(old, new)
        is_over = self._wait_answer(new, effect, before)
        took_s = time.monotonic() - begun
        if is_over:
            return Result(case.name, ENDED, took_s)
        if effect is Effect.ATTEMPT:
            self._wait(functools.partial(_is_made, before), "the children", PATIENCE_S)
        self._before = self._change_back(case, before)
        return Result(case.name, effect.value, took_s)

    def remove(self) -> None:
        """Delete the job; its children go with it."""
        try:
            self._world.place.delete(TPU_TRAINING_JOB, self._name)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def _wait_answer(self, new: Object, effect: Effect, before: Settled) -> bool:
        """Wait for the effect; whether that is the job's end."""
        generation = new["metadata"]["generation"]

        def answer(family: Family) -> str | None:
            job = _job(family)
            if job["status"].get("observedGeneration") != generation:
                return None
            if condition := _true(job, "Failed"):
                assert new["spec"].get("activeDeadlineSeconds"), condition
                return ENDED
            return effect.value if _has(effect, family, before) else None

        return bool(self._wait(answer, effect.value, self._limit_s) == ENDED)

    def _change_back(self, case: Case, before: Settled) -> Settled:
        generation = self._replace(case.before)["metadata"]["generation"]

        def restored(family: Family) -> Settled | None:
            job, found = _job(family), settled(family)
            if found is None or job["status"].get("observedGeneration") != generation:
                return None
            return (
                found if found.children == before.children and not _true(job, "Stalled") else None
            )

        return self._wait(restored, "the children of before", PATIENCE_S)

    def _replace(self, spec: Object) -> Object:
        patch: Any = [{"op": "replace", "path": "/spec", "value": spec}]
        api = self._world.place.api
        made: Object = api.request("PATCH", self._path, patch, "application/json-patch+json")
        return made

    def _wait(self, find: Callable[[Family], _T | None], what: str, limit_s: float) -> _T:
        return self._world.wait(self._name, find, what, limit_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """A job whose attempt has all its objects, and no other attempt has any."""

    attempt: int
    jobset_uid: str
    children: tuple[str, ...]  # as text, without what differs from attempt to attempt


def settled(family: Family) -> Settled | None:
    """The job's objects, once they are all there and of one attempt."""
    if any(len(family.get(kind, ())) != number for kind, number in _CHILDREN.items()):
        return None
    job = _job(family)
    attempt = job.get("status", {}).get("attempt")
    of_attempt = [item["metadata"] for kind in (JOB_SET, JOB, POD) for item in family[kind]]
    if any(meta["labels"].get(ATTEMPT_LABEL) != str(attempt) for meta in of_attempt):
        return None
    if any(meta.get("deletionTimestamp") for meta in of_attempt):
        return None
    text = [
        _of_any_attempt(_gist(kind, item), job["metadata"]["name"], attempt)
        for kind in _CHILDREN
        for item in family[kind]
    ]
    return Settled(attempt, family[JOB_SET][0]["metadata"]["uid"], tuple(sorted(text)))


def _gist(kind: Kind, child: Object) -> Object:
    """What must be the same again; JobSet makes the rest of Jobs and pods from its own spec."""
    meta = child["metadata"]
    if kind is JOB_SET:
        own = {name: meta.get(name) for name in ("name", "labels", "annotations")}
        return own | {"spec": child["spec"]}
    if kind in (SERVICE, SECRET):  # they last from attempt to attempt
        return {"name": meta["name"], "uid": meta["uid"]}
    return {"name": meta.get("generateName") or meta["name"]}  # of a pod: without its random end


def _of_any_attempt(child: Object, job: str, attempt: int) -> str:
    """An object as text, with the attempt's number taken out of names, labels and variables."""
    text = json.dumps(child, sort_keys=True)
    for before, after in (
        (f"{job}-{attempt}", f"{job}-N"),
        (f'"{ATTEMPT_LABEL}": "{attempt}"', f'"{ATTEMPT_LABEL}": "N"'),
        (f'"TPUJOB_ATTEMPT", "value": "{attempt}"', '"TPUJOB_ATTEMPT", "value": "N"'),
        (f'\\"attempt\\": {attempt},', '\\"attempt\\": N,'),
    ):
        text = text.replace(before, after)
    return text


def _job(family: Family) -> Object:
    return family[TPU_TRAINING_JOB][0]


def _true(job: Object, kind: str) -> Object | None:
    """A condition that holds, which must say more than its name."""
    conditions = job.get("status", {}).get("conditions", ())
    found = next(
        (one for one in conditions if one["type"] == kind and one["status"] == "True"), None
    )
    assert found is None or len(found["message"]) > len(_SHORTEST), found
    return found


def _has(effect: Effect, family: Family, before: Settled) -> bool:
    """Whether a change that the operator has seen shows, in children or in a condition."""
    job = _job(family)
    alive = [one for one in family.get(JOB_SET, ()) if not one["metadata"].get("deletionTimestamp")]
    is_as_before = [one["metadata"]["uid"] for one in alive] == [before.jobset_uid]
    if effect is Effect.REFUSED:
        stalled = _true(job, "Stalled")
        return bool(stalled and stalled["reason"] == reasons.INVALID_SPEC) and is_as_before
    if effect is Effect.SUSPENDED:
        return bool(_true(job, "Suspended")) and all(one["spec"].get("suspend") for one in alive)
    if effect is Effect.ATTEMPT:
        return not is_as_before and (job["status"]["attempt"] > before.attempt)
    return is_as_before


def _is_made(before: Settled, family: Family) -> bool:
    """Whether the next attempt has its JobSet, or a condition says what refuses it."""
    job = _job(family)
    attempts = [
        one["metadata"]["labels"][ATTEMPT_LABEL]
        for one in family.get(JOB_SET, ())
        if one["metadata"]["uid"] != before.jobset_uid
    ]
    return attempts == [str(job["status"]["attempt"])] or bool(_true(job, "Stalled"))
