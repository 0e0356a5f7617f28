"""What is known of TPU nodes: little of each, as there may be thousands."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable

from tpujob_operator.core.kinds import Kind
from tpujob_operator.core.nodes import NodeView, Shape, is_mass_outage
from tpujob_operator.shell.cache import Object, is_news, version_of

#: Deleted nodes remembered: what they were says why their pods were lost.
_MOST_GONE = 256


class NodeCache:
    """TPU nodes by name; takes the reflectors' word like the cache of jobs and their children."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[str], None]] = []
        self._nodes: dict[str, tuple[int, NodeView]] = {}
        self._gone: dict[str, NodeView] = {}  # oldest first
        self._shapes: collections.Counter[Shape] = collections.Counter()
        self._known: collections.Counter[str] = collections.Counter()  # by zone
        self._unready: collections.Counter[str] = collections.Counter()

    def find(self, names: Iterable[str]) -> dict[str, NodeView]:
        """Those of these nodes that are known, or were."""
        found = {name: self._get(name) for name in names}
        return {name: view for name, view in found.items() if view is not None}

    def all(self) -> list[NodeView]:
        """All TPU nodes there are."""
        return [view for _, view in self._nodes.values()]

    @property
    def shapes(self) -> frozenset[Shape]:
        """Of the slices whose nodes there are."""
        return frozenset(self._shapes)

    def is_mass_outage(self, zone: str) -> bool:
        """Whether most nodes of this zone, or of all zones, are not Ready at once."""
        return is_mass_outage(self._unready[zone], self._known[zone]) or is_mass_outage(
            self._unready.total(), self._known.total()
        )

    def _count(self, view: NodeView, change: int) -> None:
        self._known[view.zone] += change
        self._unready[view.zone] += 0 if view.is_ready else change
        self._shapes[view.shape] += change
        if not self._shapes[view.shape]:
            del self._shapes[view.shape]

    def _get(self, name: str) -> NodeView | None:
        return self._nodes[name][1] if name in self._nodes else self._gone.get(name)

    def _changed(self, name: str) -> None:
        for watcher in self.watchers:
            watcher(name)

    def put(self, _: Kind, obj: Object, listed_at: float = 0) -> bool:
        """Store what matters of a node, unless what is known is as new; say whether it changed.

        ``listed_at`` is as in ``Cache.put``.
        """
        name, version, view = obj["metadata"]["name"], version_of(obj), NodeView.of(obj)
        known_version, known = self._nodes.get(name, (-1, None))
        if known and not is_news(known_version, version, listed_at):
            return False
        self._nodes[name] = (version, view)
        if known:
            self._count(known, -1)
        self._count(view, 1)
        if view != known:
            self._changed(name)
        return view != known

    def remove(self, _: Kind, obj: Object) -> None:
        """A node is deleted, unless a namesake has taken its place."""
        name = obj["metadata"]["name"]
        if name in self._nodes and self._nodes[name][1].uid == obj["metadata"]["uid"]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        _, view = self._nodes.pop(name)
        self._count(view, -1)
        self._gone.pop(name, None)
        self._gone[name] = dataclasses.replace(view, is_gone=True)
        for oldest in list(self._gone)[:-_MOST_GONE]:
            del self._gone[oldest]
        self._changed(name)

    def prune(self, _: Kind, __: str | None, listed: Collection[str], listed_at: float) -> int:
        """Forget nodes that a listing lacks, though known from before it; say how many."""
        gone = [
            name
            for name, (version, view) in self._nodes.items()
            if view.uid not in listed and version <= listed_at
        ]
        for name in gone:
            self._forget(name)
        return len(gone)
