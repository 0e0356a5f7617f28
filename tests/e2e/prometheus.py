"""A Prometheus of one's own: it scrapes through the API server, as a user with a kubeconfig may."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from localcluster.cache import cache_dir, locked
from localcluster.layout import free_ports
from tests.waiting import wait_until
from tpujob_agent.processes import die_with_parent

RULES = Path(__file__).parents[2] / "charts/tpujob-operator/files/rules.yaml"
_READY_S = 30.0
_QUERY_S = 10.0


def program(name: str = "prometheus") -> str:
    """Prometheus or promtool of this host or of Debian's package: unpacked, not installed.

    Installing the package would start a server.
    """
    if found := shutil.which(name):
        return found
    if shutil.which("apt-get") is None:
        pytest.skip(f"no Prometheus: put `{name}` on PATH, or run on Debian or Ubuntu")
    folder = cache_dir("prometheus")
    with locked(folder / "lock"):
        if not (binary := folder / "root/usr/bin" / name).exists():
            _unpack(folder)
    return str(binary)


def _unpack(folder: Path) -> None:
    subprocess.run(["apt-get", "-q", "update"], check=False, capture_output=True)
    got = subprocess.run(
        ["apt-get", "-q", "download", "prometheus"],
        check=False, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    packages = [*folder.glob("prometheus_*.deb")]
    if got.returncode or not packages:
        pytest.skip(f"no Prometheus: apt-get download prometheus: {got.stderr.strip()[-300:]}")
    unpacked = folder / "unpacked"
    subprocess.run(["dpkg-deb", "--extract", packages[0], unpacked], check=True)
    packages[0].unlink()
    unpacked.rename(folder / "root")


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int, log: Path) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._log = log

    def get(self, path: str) -> str:
        """The text of a page; empty while nobody answers."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=_QUERY_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            return ""
        except OSError:
            return ""

    def query(self, expression: str) -> dict[str, float]:
        """Values of an instant query, by the label that tells them apart, or by ''."""
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        answer = json.loads(self.get(path) or '{"data": {"result": []}}')
        found = {}
        for series in answer["data"]["result"]:
            key = ",".join(value for _, value in sorted(series["metric"].items()))
            found[key] = float(series["value"][1])
        return found

    def value(self, expression: str) -> float | None:
        """The only value of a query; None: there is none."""
        values = [*self.query(expression).values()]
        return values[0] if len(values) == 1 else None

    def wait_value(self, expression: str, limit_s: float = 120.0) -> float:
        """Wait until a query has a value."""
        found = wait_until(lambda: self.query(expression), f"{expression}; {self.tail()}", limit_s)
        return next(iter(found.values()))

    def tail(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-2000:]


@contextlib.contextmanager
def scraping(
    folder: Path, api: client.Configuration, services: Mapping[str, str]
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes /metrics of services every second, and evaluates our rules.

    Args:
        folder: An empty one, for its data.
        api: The API server and the credentials to use there.
        services: ``namespace/services/name:port`` by the name of the scrape.
    """
    [port] = free_ports(1)
    config, log = folder / "prometheus.yml", folder / "prometheus.log"
    config.write_text(yaml.safe_dump(_config(api, services)))
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [
                program(),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=sink,
            stderr=subprocess.STDOUT,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - tests run in one thread
        )
    made = Prometheus(port, log)
    try:
        wait_until(lambda: made.get("/-/ready"), f"Prometheus\n{made.tail()}", _READY_S)
        yield made
    finally:
        process.kill()
        process.wait()


def _config(api: client.Configuration, services: Mapping[str, str]) -> dict[str, Any]:
    server = urllib.parse.urlsplit(api.host)
    files = {"ca_file": api.ssl_ca_cert, "cert_file": api.cert_file, "key_file": api.key_file}
    bearer = next(iter(api.api_key.values()), "").removeprefix("Bearer ")
    access: dict[str, Any] = {
        "scheme": server.scheme,
        "tls_config": {name: path for name, path in files.items() if path},
        "static_configs": [{"targets": [server.netloc]}],
        # The labels `job` and `namespace` name the training job, not the scrape.
        "honor_labels": True,
        **({"authorization": {"credentials": bearer}} if bearer else {}),
    }
    return {
        "global": {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "evaluation_interval": "1s",
        },
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": name, "metrics_path": f"/api/v1/namespaces/{path}/proxy/metrics", **access}
            for name, path in services.items()
        ],
    }
