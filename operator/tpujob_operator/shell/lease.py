"""Leader election: of all replicas, the one that holds the Lease writes (docs/decisions/0016)."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
import uuid
from typing import Any, Protocol

from tpujob_operator.core.election import LeaseTiming, Sighting, held, manifest, released
from tpujob_operator.core.kinds import LEASE
from tpujob_operator.settings import Settings
from tpujob_operator.shell.client import ApiError, Client
from tpujob_operator.shell.clock import wall_ms

_log = logging.getLogger(__name__)
#: A replica that waits looks this often, so that it acts soon after a release.
_LOOK_S = 1.0
_RELEASE_TIMEOUT_S = 3.0


class NotLeaderError(ApiError):
    """This replica may not write now; nothing was sent."""

    def __init__(self) -> None:
        super().__init__(0, "this replica does not hold the operator's Lease; nothing was sent")


class LostLeaseError(Exception):
    """Another replica holds the Lease: this process must end."""


class Election(Protocol):
    """Says whether this replica may write, and lets it take part in the election."""

    @property
    def is_leader(self) -> bool:
        """Whether this replica may write at this moment."""

    def write_time_s(self) -> float:
        """Seconds that a write may take that is sent now.

        Raises:
            NotLeaderError: this replica may not write.
        """

    async def acquire(self) -> None:
        """Wait until this replica is the leader."""

    async def keep(self) -> None:
        """Renew the leadership for ever.

        Raises:
            LostLeaseError: another replica is the leader.
        """

    async def release(self) -> None:
        """Give the leadership up, so that another replica acts at once."""


class NoElection:
    """For a single replica: it is the leader from start to end."""

    is_leader = True

    def write_time_s(self) -> float:
        """No limit."""
        return math.inf

    async def acquire(self) -> None:
        """Nothing to wait for."""

    async def keep(self) -> None:
        """Nothing to renew."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """Nothing to give up."""


def elections(settings: Settings, client: Client) -> Election:
    """The election that the settings ask for; ``client`` must have neither limiter nor fence."""
    if not settings.lease_name:
        _log.info("TPUJOB_LEASE_NAME is not set: no election, run a single replica only")
        return NoElection()
    identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    return LeaseElection(
        client, settings.namespace, settings.lease_name, identity, settings.lease_timing
    )


class LeaseElection:
    """One candidate for a Lease.

    The leader may write until ``renew_deadline_s`` after it *sent* its last successful renewal,
    by the monotonic clock. The API server may have been away for longer: as long as a renewal
    finds the Lease as this candidate left it, nobody else has held it, and the candidate is the
    leader again. Only a Lease that another one holds is lost.
    """

    def __init__(
        self, client: Client, namespace: str, name: str, identity: str, timing: LeaseTiming
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing
        self._seen = Sighting()
        self._lease: dict[str, Any] = {}
        self._renewed_at = -math.inf  # when the last successful renewal was sent
        self._failing_since = 0.0

    @property
    def is_leader(self) -> bool:
        """Whether the last renewal is young enough to write."""
        return time.monotonic() < self._renewed_at + self._timing.renew_deadline_s

    def write_time_s(self) -> float:
        """Seconds until another replica may write."""
        if not self.is_leader:
            raise NotLeaderError
        return self._renewed_at + self._timing.duration_s - time.monotonic()

    async def acquire(self) -> None:
        """Look at the Lease until it is free, and take it."""
        is_taken = False
        while not is_taken:
            asked_s = 0.0
            try:
                is_taken = await self._take_if_free()
                self._succeeded()
            except ApiError as error:
                self._failed(error)
                asked_s = error.retry_after_s
            await asyncio.sleep(0 if is_taken else max(asked_s, self._pause_s()))
        _log.info("this replica is the leader: %s holds Lease %s", self._identity, self._where)

    def _pause_s(self) -> float:
        look_s = min(_LOOK_S, self._timing.retry_s)
        remaining_s = self._seen.remaining_s(time.monotonic())
        return min(look_s, remaining_s) if remaining_s else look_s

    async def _take_if_free(self) -> bool:
        lease = await self._read()
        before = self._seen.holder
        self._seen = self._seen.then(lease, time.monotonic())
        if self._seen.holder == self._identity:  # taken with a request that got no answer
            return await self._write(lease)
        if self._seen.remaining_s(time.monotonic()):
            if self._seen.holder != before:
                _log.info("standby: %s holds Lease %s", self._seen.holder, self._where)
            return False
        return await self._write(lease)

    async def keep(self) -> None:
        """Renew the Lease for ever, at an even pace."""
        while True:
            pace_s = self._timing.retry_s
            started = time.monotonic()
            try:
                await self._renew()
                self._succeeded()
            except ApiError as error:
                self._failed(error)
                pace_s = max(pace_s, error.retry_after_s)
            await asyncio.sleep(max(0.0, started + pace_s - time.monotonic()))

    async def _renew(self) -> None:
        if await self._write(self._lease):
            return
        lease = await self._read()
        holder = _holder(lease or {})
        if lease is not None and holder != self._identity:
            self._renewed_at = -math.inf
            raise LostLeaseError(f"{holder or 'nobody'} holds Lease {self._where} now")
        # Deleted by somebody, or renewed by a request that got no answer.
        await self._write(lease)

    async def release(self) -> None:
        """Leave the Lease to the next one, if this candidate still is the leader."""
        if not self.is_leader:
            return
        self._renewed_at = -math.inf
        try:
            if not await self._give_up(self._lease):
                # The last renewal was cut off by the end, and the API server has made it.
                lease = await self._read() or {}
                if _holder(lease) == self._identity:
                    await self._give_up(lease)
            _log.info("released Lease %s", self._where)
        except ApiError as error:
            _log.warning("Lease %s was not released: %s", self._where, error.message)

    async def _give_up(self, lease: dict[str, Any]) -> bool:
        """Release the Lease; no: it is not as it was seen any more."""
        try:
            await self._send("update", released(lease, wall_ms()), _RELEASE_TIMEOUT_S)
        except ApiError as error:
            if error.is_conflict:
                return False
            raise
        return True

    async def _read(self) -> dict[str, Any] | None:
        path = LEASE.path(self._namespace, self._name)
        try:
            return await self._client.request(
                "get", path, plural=LEASE.plural, timeout_s=self._timeout_s
            )
        except ApiError as error:
            if error.is_not_found and error.about:
                return None
            raise

    async def _write(self, lease: dict[str, Any] | None) -> bool:
        """Take or renew the Lease; no: it is not as it was seen any more."""
        sent_at = time.monotonic()
        verb = "update" if lease else "create"
        body = lease or manifest(self._namespace, self._name)
        try:
            body = held(body, self._identity, self._timing, wall_ms())
            self._lease = await self._send(verb, body, self._timeout_s)
        except ApiError as error:
            if error.is_conflict or (error.is_not_found and verb == "update"):
                return False
            raise
        self._renewed_at = sent_at
        return True

    async def _send(self, verb: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        path = LEASE.path(self._namespace, self._name if verb == "update" else "")
        return await self._client.request(
            verb, path, body=body, plural=LEASE.plural, timeout_s=timeout_s
        )

    @property
    def _timeout_s(self) -> float:
        return self._timing.renew_deadline_s / 2

    @property
    def _where(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _succeeded(self) -> None:
        if self._failing_since:
            _log.info("Lease %s can be reached again", self._where)
        self._failing_since = 0.0

    def _failed(self, error: ApiError) -> None:
        if not self._failing_since:  # told once, not at every attempt
            self._failing_since = time.monotonic()
            _log.warning(
                "Lease %s cannot be reached, and nothing is written without it: %s",
                self._where,
                error.message,
            )


def _holder(lease: dict[str, Any]) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
