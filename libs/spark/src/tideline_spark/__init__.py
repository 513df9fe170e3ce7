"""Work of the engine on Spark: DataFrame reads and writes, and table-service applications."""

import tideline_spark.options  # declares the options, also in the workers of Spark
