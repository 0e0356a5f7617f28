"""Builders of the Kubernetes objects a job is made of."""

from tpujob_operator.core.manifests.objects import build

__all__ = ["build"]
