"""A Kubernetes cluster with one node on this machine: programs from Go modules, containerd from Debian, every process recorded.

Nothing of Tideline belongs here: `e2e.images` builds its images, and its chart installs it as on any other cluster.
"""
