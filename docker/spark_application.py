"""The file that spark-submit runs for a table service.

spark-submit takes files, not modules, and puts a file's folder on the module path. This file lies in a folder without other
modules.
"""

import runpy

runpy.run_module("tideline_spark.application", run_name="__main__", alter_sys=True)
