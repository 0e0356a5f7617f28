"""Who judges a job: our models, and a real API server that stores nothing."""

from __future__ import annotations

import threading
from typing import Any

from kubernetes import config

from localcluster.cluster import Cluster
from localcluster.kubeapi import Api, Object
from tests.e2e.access import Access
from tpujob_operator.api.models import InvalidJobError, parse_job
from tpujob_operator.core.kinds import Kind
from tpujob_operator.core.manifests.options import ManifestOptions

#: Answers of an API server that say what is wrong with an object.
IN_WORDS = (400, 422)
OPTIONS = ManifestOptions("key", "operator", "trainer")


def refusal(raw: Object) -> str:
    """Why our models refuse a job; empty: they do not."""
    try:
        parse_job(raw, strict=True)
    except InvalidJobError as refused:
        return str(refused)
    return ""


class DryRuns:
    """Asks the API server what it would make of an object; each thread keeps one connection."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._kubeconfig = str(cluster.kubeconfig)
        self._namespace = namespace
        self._local = threading.local()

    def create(self, kind: Kind, thing: Object) -> Object:
        """The object with all defaults, as it would be stored.

        Raises:
            ApiError: it is refused.
        """
        path = f"{kind.path(self._namespace)}?dryRun=All"
        return dict(self._api.request("POST", path, thing))

    @property
    def _api(self) -> Api:
        if not hasattr(self._local, "api"):
            load: Any = config.new_client_from_config
            self._local.api = Access(load(config_file=self._kubeconfig))
        api: Api = self._local.api
        return api
