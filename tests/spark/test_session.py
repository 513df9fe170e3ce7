"""The JVM of a local session."""

from __future__ import annotations

from pyspark.sql import SparkSession

MEBIBYTE = 1 << 20


def test_a_short_lived_jvm_has_room_for_the_code_of_all_tests(spark: SparkSession) -> None:
    """With the default of one compiler, 48 MB, code was thrown away and compiled again: a tenth of the processor time."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pools = [pool for pool in jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans() if "Code" in pool.getName()]
    assert sum(pool.getUsage().getMax() for pool in pools) >= 200 * MEBIBYTE


def test_the_start_of_a_short_lived_jvm_collects_no_garbage_because_of_its_classes(spark: SparkSession) -> None:
    """Spark's classes need more than the first limit of a JVM, and each new limit let it collect the whole heap."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    (bean,) = jvm.java.lang.management.ManagementFactory.getPlatformMXBeans(
        jvm.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
    )
    assert int(bean.getVMOption("MetaspaceSize").getValue()) >= 200 * MEBIBYTE
