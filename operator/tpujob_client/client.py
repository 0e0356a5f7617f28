"""The client: jobs of one namespace, as its user may see and change them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from tpujob_client.answers import explained
from tpujob_client.errors import ClusterError, WaitTimeoutError
from tpujob_client.job import ENDS, Job, event_time, manifest
from tpujob_client.logs import LogLine, Logs
from tpujob_client.report import Report
from tpujob_client.sources import Wanted, place_of
from tpujob_client.watching import REQUEST_TIMEOUT_S, versions
from tpujob_operator.api.base import GROUP, KIND, PLURAL, VERSION
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.api.models import TPUTrainingJob, parse_job


class Client:
    """Jobs of one namespace.

    Every method raises ``ClusterError``, or the one of its kinds that fits, if the cluster cannot
    give what is asked for; the message says what to do.
    """

    def __init__(self, api_client: client.ApiClient, namespace: str = "default") -> None:
        self.api_client = api_client
        self.namespace = namespace
        self._objects: Any = client.CustomObjectsApi(api_client)  # has no types

    @classmethod
    def from_kubeconfig(
        cls,
        path: str | Path | None = None,
        *,
        context: str | None = None,
        namespace: str | None = None,
    ) -> Self:
        """A client with a kubeconfig's rights.

        Args:
            path: the kubeconfig; default: as kubectl has it.
            context: one of its contexts; default: the current one.
            namespace: where the jobs are; default: the context's.

        Raises:
            ClusterError: there is no usable kubeconfig.
        """
        loaders: Any = config
        file = None if path is None else str(path)
        try:
            api_client = loaders.new_client_from_config(config_file=file, context=context)
            return cls(api_client, namespace or _own_namespace(file, context))
        except ConfigException as error:
            raise ClusterError(
                f"no usable kubeconfig: {error}; give --kubeconfig or set KUBECONFIG"
            ) from error

    def create(self, job: TPUTrainingJob | Mapping[str, Any]) -> Job:
        """Create a job, in the client's namespace unless it names one.

        Args:
            job: made by ``new_job``, or the mapping that a manifest holds.

        Raises:
            InvalidJobError: it could not be run; nothing was sent.
        """
        raw = manifest(job) if isinstance(job, TPUTrainingJob) else dict(job)
        checked = parse_job(raw, strict=True)
        namespace = raw["metadata"].get("namespace") or self.namespace
        name = checked.metadata.name
        with explained(self.api_client, namespace, name, "create"):
            made = self._objects.create_namespaced_custom_object(
                GROUP, VERSION, namespace, PLURAL, raw, _request_timeout=REQUEST_TIMEOUT_S
            )
        return Job(made)

    def get(self, name: str) -> Job:
        """A job as it is now."""
        with self._explained(name):
            return Job(
                self._objects.get_namespaced_custom_object(
                    *self._where, name, _request_timeout=REQUEST_TIMEOUT_S
                )
            )

    def list(
        self, *, everywhere: bool = False, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Sequence[Job]:
        """All jobs of the namespace, or of the cluster."""
        with self._explained():
            if everywhere:
                found = self._objects.list_cluster_custom_object(
                    GROUP, VERSION, PLURAL, _request_timeout=timeout_s
                )
            else:
                found = self._objects.list_namespaced_custom_object(
                    *self._where, _request_timeout=timeout_s
                )
        return [Job(item) for item in found["items"]]

    def watch(self, name: str, *, timeout_s: float | None = None) -> Iterator[Job]:
        """A job as it is, and anew each time it has changed; some versions may be passed over.

        An API server that is away for some minutes is waited for.

        Args:
            name: of the job.
            timeout_s: when to end; default: never.

        Raises:
            JobNotFoundError: there is no such job, or it was deleted meanwhile.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        yield from versions(self._objects, self.namespace, name, deadline)

    def wait(
        self,
        name: str,
        *conditions: ConditionType,
        timeout_s: float | None = None,
        on_change: Callable[[Job], None] | None = None,
    ) -> Job:
        """Wait until one of some conditions is True, or the job has ended, and return it.

        Args:
            name: of the job.
            conditions: what to wait for; default: the end.
            timeout_s: the longest wait; default: for ever.
            on_change: called with the job as it is, and as it is after each change.

        Raises:
            WaitTimeoutError: nothing of it has come in time.
            JobNotFoundError: there is no such job, or it was deleted meanwhile.
        """
        for job in self.watch(name, timeout_s=timeout_s):
            if on_change is not None:
                on_change(job)
            if job.first_true(*conditions, *ENDS):
                return job
        what = " or ".join(conditions) or "end"
        raise WaitTimeoutError(f"{name} did not come to {what} within {timeout_s:g} s")

    def suspend(self, name: str) -> Job:
        """Have a job save, and give up its pods."""
        return self._change(name, {"suspend": True})

    def resume(self, name: str) -> Job:
        """Let a suspended job go on."""
        return self._change(name, {"suspend": False})

    def delete(self, name: str) -> None:
        """Delete a job with all its objects; its checkpoints stay."""
        with self._explained(name, "delete"):
            self._objects.delete_namespaced_custom_object(
                *self._where, name, _request_timeout=REQUEST_TIMEOUT_S
            )

    def report(self, name: str) -> Report:
        """Where a job's time and money went.

        Raises:
            NothingToReportError: no operator has looked at the job yet.
        """
        return Report.of(self.get(name))

    def logs(
        self,
        name: str,
        *,
        attempt: int | None = None,
        worker: str | None = None,
        rank: int | None = None,
        coordinator: bool = False,
        previous: bool = False,
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[LogLine]:
        """Lines that a job's workers have printed, one worker after the other.

        Args:
            name: of the job.
            attempt: of this one alone; logs go with their pods, so it is mostly the newest.
            worker: of this one alone, as ``slice/host``.
            rank: of the worker that has this process id now, in JAX's sense.
            coordinator: of the coordinator instead.
            previous: of the container's run before the present one.
            follow: go on, through restarts and replaced pods, until the job has ended.
            tail: so many of the last lines of each.

        Raises:
            NoLogsError: there are none.
            ValueError: arguments that exclude each other, or a worker that is none.
        """
        _check_exclusive(worker=worker, rank=rank, coordinator=coordinator or None)
        _check_exclusive(previous=previous or None, follow=follow or None)
        place = None if worker is None else place_of(worker)
        wanted = Wanted(name, attempt, place, coordinator)
        self.get(name)  # says so if there is none
        logs = Logs(self.api_client, self.namespace)
        if rank is not None:
            wanted = logs.rank(wanted, rank)
        if follow:
            return logs.follow(wanted, self.watch(name), tail)
        return logs.read(wanted, previous=previous, tail=tail)

    def events(self, name: str) -> Sequence[dict[str, Any]]:
        """A job's events as Kubernetes has them, oldest first."""
        api: Any = self.api_client  # has types, but not everywhere
        core: Any = client.CoreV1Api(api)
        with self._explained(name, "read events of"):
            found = core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.kind={KIND},involvedObject.name={name}",
                _request_timeout=REQUEST_TIMEOUT_S,
            )
        items = api.sanitize_for_serialization(found)["items"]
        return sorted(items, key=event_time)

    @property
    def _where(self) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self.namespace, PLURAL

    def _explained(self, name: str = "", verb: str = "read") -> AbstractContextManager[None]:
        return explained(self.api_client, self.namespace, name, verb)

    def _change(self, name: str, spec: Mapping[str, Any]) -> Job:
        with self._explained(name, "change"):
            return Job(
                self._objects.patch_namespaced_custom_object(
                    *self._where, name, {"spec": dict(spec)}, _request_timeout=REQUEST_TIMEOUT_S
                )
            )


def _check_exclusive(**given: Any) -> None:
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} exclude each other: give one of them")


def _own_namespace(kubeconfig: str | None, context: str | None) -> str:
    loaders: Any = config
    contexts, active = loaders.list_kube_config_contexts(config_file=kubeconfig)
    meant = next((one for one in contexts if one["name"] == context), active)
    return str(meant["context"].get("namespace") or "default")
