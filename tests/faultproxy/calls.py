"""What a request to the API server asks for, read from its method and address."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_WRITES = frozenset({"create", "update", "patch", "delete"})
#: Events are a courtesy and leases a heartbeat: no object of a job depends on either.
_ASIDE = frozenset({"events", "leases"})


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One request, in the words of Kubernetes' authorization: verb, resource, name."""

    verb: str
    resource: str = ""  # plural; empty: no resource, such as discovery
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @classmethod
    def of(
        cls, method: str, path: str, query: Mapping[str, str], body: Object | None = None
    ) -> Call:
        """Read a request; the name of an object to create is in its body."""
        parts = path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        resource, name, subresource = [*rest, "", "", ""][:3]
        verb = _VERBS.get(method, method.lower())
        if verb == "get" and resource and not name:
            verb = "watch" if query.get("watch", "") in ("true", "1", "True") else "list"
        if verb == "create" and not name:
            name = str(((body or {}).get("metadata") or {}).get("name", ""))
        return cls(verb, resource, namespace, name, subresource)

    @property
    def is_write(self) -> bool:
        """Whether it changes an object that a job depends on."""
        return self.verb in _WRITES and self.resource not in _ASIDE

    @property
    def target(self) -> str:
        """The resource, with its subresource if there is one."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource
