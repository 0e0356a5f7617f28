"""The oracle of two replicas: it sees whoever writes without the Lease."""

from __future__ import annotations

import json

from tests.faultproxy.calls import Call, Object
from tests.replicas.record import Record, first_write_s, takeovers, trespasses

_JOB_SET = Call("create", "jobsets", "n", "j-1")
_LEASE = Call("update", "leases", "n", "operator")


def _answer(record: Record, call: Call, obj: Object, code: int = 200) -> None:
    record.add_call(call)
    record.add_answer(call, 0, code, json.dumps(obj).encode())


def _hold(record: Record, holder: str, version: int) -> None:
    lease = {"metadata": {"resourceVersion": str(version)}, "spec": {"holderIdentity": holder}}
    _answer(record, _LEASE, lease)


def _write(record: Record, version: int, code: int = 200) -> None:
    _answer(record, _JOB_SET, {"metadata": {"resourceVersion": str(version)}}, code)


def test_writes_within_terms_are_none() -> None:
    """Each replica writes while it holds the Lease, and another process of it may lead again."""
    first, second = Record(), Record()
    _hold(first, "a", 10)
    _write(first, 11)
    _hold(second, "b", 20)
    _write(second, 21)
    _hold(first, "c", 30)
    _write(first, 31)
    assert trespasses([first, second]) == []
    assert takeovers([first, second]) == 2


def test_late_write_of_the_former_leader_is_seen() -> None:
    """One that the API server took, and one that it refused, are told apart."""
    first, second = Record(), Record()
    _hold(first, "a", 10)
    _hold(second, "b", 20)
    _write(first, 21)
    _write(first, 0, code=409)
    what = "create jobsets j-1"
    assert trespasses([first, second]) == [
        f"replica 0 wrote while 1 led: {what}",
        f"replica 0 tried to write while 1 led: {what}",
        f"replica 0 tried to write while 1 led: {what}",
    ]


def test_write_under_way_at_the_change_is_seen_by_its_version() -> None:
    """It was sent in time and arrived too late."""
    first, second = Record(), Record()
    _hold(first, "a", 10)
    first.add_call(_JOB_SET)
    _hold(second, "b", 20)
    first.add_answer(_JOB_SET, 0, 201, b'{"metadata": {"resourceVersion": "21"}}')
    assert trespasses([first, second]) == ["replica 0 wrote while 1 led: create jobsets j-1"]


def test_standby_that_writes_before_anybody_leads_is_seen() -> None:
    """Nobody's Lease allows nothing, nor does one that was released."""
    first, second = Record(), Record()
    _write(second, 5)
    _hold(first, "a", 10)
    _hold(first, "", 11)
    _write(first, 12)
    assert [line.partition(":")[0] for line in trespasses([first, second])] == [
        "replica 0 wrote while -1 led",
        "replica 0 tried to write while -1 led",
        "replica 1 wrote while -1 led",
        "replica 1 tried to write while -1 led",
    ]


def test_first_write_is_of_a_job() -> None:
    """Neither the Lease nor an event is work on a job."""
    record = Record()
    _hold(record, "a", 10)
    _answer(record, Call("create", "events", "n", "e"), {"metadata": {"resourceVersion": "11"}})
    assert first_write_s(record, 0) is None
    _write(record, 12)
    assert first_write_s(record, 0) == record.sent[-1].at_s
