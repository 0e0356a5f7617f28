"""Which status the API server takes: its CRD may be of an older release than the operator."""

from __future__ import annotations

import asyncio
import logging

from tpujob_operator.api.base import VERSION
from tpujob_operator.api.crd import CRD_NAME, openapi_schema
from tpujob_operator.core.kinds import Kind
from tpujob_operator.core.served import Schema, lacks
from tpujob_operator.shell.client import ApiError, Client

_log = logging.getLogger(__name__)
_CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
_PERIOD_S = 60.0
_SHOWN = 20


class ServedSchema:
    """Looks now and then whether the served CRD has all that the operator writes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ours: Schema = openapi_schema()["properties"]["status"]
        #: what the CRD lacks of a status
        self.lacking: tuple[str, ...] = ()
        #: to make the status fit; None: it fits as it is, or nobody knows
        self.schema: Schema | None = None

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.look()

    async def look(self) -> None:
        """Compare the schemas; an API server that does not answer leaves all as it was."""
        try:
            served = await self._served()
        except ApiError as error:
            _log.warning("the served CRD cannot be read: %s", error.message)
            return
        lacking = tuple(lacks(self._ours, served)) if served is not None else ()
        if lacking != self.lacking:
            self._tell(lacking)
        self.lacking, self.schema = lacking, served if lacking else None

    def _tell(self, lacking: tuple[str, ...]) -> None:
        if not lacking:
            _log.info("the CRD has all that the operator writes")
            return
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        _log.warning(
            "the CRD %s is of another release and lacks %s%s: the status of jobs is written "
            "without them. Upgrade it: kubectl apply --server-side -f crds/",
            CRD_NAME, ", ".join(lacking[:_SHOWN]), more,
        )  # fmt: skip

    async def _served(self) -> Schema | None:
        """The schema of the status in our version; None: it is not served."""
        query = {"fieldSelector": f"metadata.name={CRD_NAME}"}
        found = await self._client.request("list", _CRD.path(None), query=query, plural=_CRD.plural)
        for version in (one for item in found["items"] for one in item["spec"]["versions"]):
            if version["name"] == VERSION:
                schema: Schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
                return schema
        return None
