"""Applications on Kubernetes: a driver pod for each, with executors started by Spark.

The launcher creates nothing but the driver pod: Spark's settings and the executors' template are annotations of the pod, which
the pod mounts as files. So one request starts an application, and deleting the pod removes everything. Only `api` sends
requests to the API server.
"""

from tideline_launcher.kubernetes.driver_pods import DriverPods
