"""The one error of the cluster and its images."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster or an image cannot be had; the message says what was found, what was expected and what to do."""
