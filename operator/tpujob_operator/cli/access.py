"""The cluster as the command line sees it: with the kubeconfig of its user."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpujob_client import Client


def add_access(parser: argparse.ArgumentParser) -> None:
    """Arguments that say which cluster and namespace are meant."""
    parser.add_argument("-n", "--namespace", help="default: the kubeconfig's")
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: as kubectl has it")


def client_of(given: argparse.Namespace) -> Client:
    """The client that the arguments of ``add_access`` mean.

    Raises:
        ClusterError: there is no usable kubeconfig.
    """
    from tpujob_client import Client  # noqa: PLC0415 - only who asks a cluster waits for it

    return Client.from_kubeconfig(given.kubeconfig, namespace=given.namespace)
