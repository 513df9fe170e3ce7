"""Tests of the whole system, and the parts of a real environment that they run in: a Kubernetes cluster and images."""
