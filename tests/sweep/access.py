"""The administrator's way to the API server, beside any proxy."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path

import aiohttp


class Access:
    """Address and credentials of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        given = json.loads(kubeconfig.read_text())
        self._address = given["clusters"][0]["cluster"]
        self._token = given["users"][0]["user"]["token"]

    def session(self) -> aiohttp.ClientSession:
        """An HTTP session for requests by path, without a limit of time."""
        authority = base64.b64decode(self._address["certificate-authority-data"]).decode()
        tls = ssl.create_default_context(cadata=authority)
        return aiohttp.ClientSession(
            base_url=self._address["server"],
            headers={"Authorization": f"Bearer {self._token}"},
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            timeout=aiohttp.ClientTimeout(),
        )
