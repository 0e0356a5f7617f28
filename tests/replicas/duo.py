"""Two replicas of the operator, each behind a proxy of its own, and started again when it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path

from localcluster.cluster import Cluster
from tests.faultproxy.proxy import FaultProxy
from tests.replicas.record import Record
from tests.sweep.operators import Keeper, Zygote
from tests.waiting import wait_until

LEASE_NAME = "operator"
#: For samples; what is measured is measured with the default durations.
SHORT_LEASE = {
    "TPUJOB_LEASE_DURATION_S": "3",
    "TPUJOB_LEASE_RENEW_DEADLINE_S": "2",
    "TPUJOB_LEASE_RETRY_S": "0.5",
}


class _Keeper(Keeper):
    """Keeps one replica."""

    def __init__(
        self, source: Zygote, kubeconfig: Path, namespace: str, folder: Path, env: dict[str, str]
    ) -> None:
        super().__init__(source, kubeconfig, namespace, folder)
        self._env |= {"TPUJOB_NAMESPACE": namespace, "TPUJOB_LEASE_NAME": LEASE_NAME, **env}


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """One of the two."""

    keeper: Keeper
    proxy: FaultProxy
    record: Record

    @property
    def has_led(self) -> bool:
        """Whether it is or was the leader."""
        return "this replica is the leader" in self.keeper.text

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process of this moment."""
        self.keeper.send(self.keeper.pid, number)


@contextlib.contextmanager
def _replica(
    cluster: Cluster, source: Zygote, namespace: str, folder: Path, env: dict[str, str]
) -> Iterator[Replica]:
    folder.mkdir(parents=True)
    record = Record()
    proxy = FaultProxy(cluster.kubeconfig, folder)
    proxy.journal = record
    with proxy, _Keeper(source, proxy.kubeconfig, namespace, folder, env) as keeper:
        yield Replica(keeper, proxy, record)


@contextlib.contextmanager
def two_replicas(
    cluster: Cluster, source: Zygote, namespace: str, folder: Path, env: dict[str, str]
) -> Iterator[tuple[Replica, Replica]]:
    """The leader, and its standby; both are ready."""
    with _replica(cluster, source, namespace, folder / "0", env) as leader:
        wait_until(lambda: leader.has_led, "a leader")
        with _replica(cluster, source, namespace, folder / "1", env) as standby:
            yield leader, standby
