"""Engine work on Spark: DataFrames and table-service applications."""
