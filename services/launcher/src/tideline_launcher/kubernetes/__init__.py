"""Applications on Kubernetes: a driver pod for each, with executors started by Spark.

The driver pod is all that the launcher creates: Spark's settings and the executors' template are annotations of the pod, which it
reads as files. So one request starts an application, and deleting the pod leaves nothing. Only `api` talks to the API server.
"""

from tideline_launcher.kubernetes.driver_pods import DriverPods

__all__ = ["DriverPods"]
