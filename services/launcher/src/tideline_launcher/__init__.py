"""Starts, watches, retries and adopts one Spark application per plan."""
