# The image of Spark's drivers and executors with Tideline's libraries. The context is the repository; docs/images.md explains the stages.
#
# BASE is Debian bookworm, slim. Where a registry serves it, pass it by digest: --build-arg BASE=debian@sha256:...
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS tools
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/image.txt /build/requirements/
RUN python3 -m venv /opt/tools \
    && /opt/tools/bin/pip install -q --no-cache-dir --require-hashes -r /build/requirements/image.txt

FROM tools AS packages
RUN python3 -m venv --without-pip /opt/tideline
COPY requirements/spark.txt /build/requirements/
# pyspark is published as source: its wheel is made here, with the pinned setuptools.
RUN /opt/tools/bin/pip wheel -q --no-cache-dir --no-build-isolation --no-deps --wheel-dir /build/packages \
        --require-hashes -r /build/requirements/spark.txt \
    && /opt/tools/bin/pip --python /opt/tideline/bin/python install -q --no-compile --no-deps --no-index /build/packages/*.whl \
    && rm -r /build/packages
COPY docker/pruning.py /build/docker/
RUN /opt/tools/bin/python /build/docker/pruning.py /opt/tideline
COPY pyproject.toml README.md /build/
COPY libs /build/libs
COPY services /build/services
RUN /opt/tools/bin/pip wheel -q --no-cache-dir --no-deps --no-build-isolation --wheel-dir /build/wheels /build \
    && /opt/tools/bin/pip --python /opt/tideline/bin/python install -q --no-cache-dir --no-compile --no-deps /build/wheels/*.whl

FROM ${BASE} AS java
# The set-up of the Java packages writes into the folder of manual pages; Hadoop needs a name and a home for the user.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends python3 openjdk-17-jre-headless tini \
    && useradd --uid 1000 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin tideline \
    && install -d -o tideline -g tideline /var/lib/tideline /opt/spark/conf \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/cache/debconf /var/log/*

FROM java AS jars
# What Spark needs to scan tables in an object store: hadoop-aws, and of the AWS SDK only the modules that it loads.
# Options of Java while it resolves them (proxies, the store of certificate authorities), and another repository.
ARG JDK_JAVA_OPTIONS=
ARG TIDELINE_MAVEN_MIRROR=
COPY --from=packages /opt/tideline/lib/python3.11/site-packages/pyspark/jars/ivy-*.jar /build/ivy/
COPY docker/maven.py docker/spark_s3_jars.json /build/docker/
RUN python3 /build/docker/maven.py --ivy /build/ivy/ivy-*.jar /build/docker/spark_s3_jars.json /build/jars

FROM java AS runtime
COPY --from=packages /opt/tideline /opt/tideline
COPY --from=jars /build/jars/ /opt/tideline/lib/python3.11/site-packages/pyspark/jars/
ENV JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64 \
    SPARK_HOME=/opt/tideline/lib/python3.11/site-packages/pyspark \
    SPARK_CONF_DIR=/opt/spark/conf \
    PYSPARK_PYTHON=/opt/tideline/bin/python \
    PATH=/opt/tideline/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

FROM runtime AS materials
COPY --from=tools /opt/tools /opt/tools
COPY docker/bill_of_materials.py docker/components.py docker/spark_check.py /build/docker/
WORKDIR /build
ARG VERSION=0.0.0
RUN /opt/tools/bin/python -m docker.bill_of_materials --name tideline-spark --version ${VERSION} \
    --environment /opt/tideline --output /build/bom.json
# What is left out must not be missed.
RUN python -c "import tideline_spark.application, tideline_spark.data_source, tideline_locks.redis" \
    && AWS_REGION=none python -c "from tideline_table.storage import open_storage; open_storage('s3://bucket/table')" \
    && AWS_REGION=none python /build/docker/spark_check.py

FROM runtime
COPY docker/spark_entrypoint.py /opt/spark/bin/entrypoint.py
COPY docker/spark_application.py /opt/spark/application.py
COPY --from=materials /build/bom.json /usr/share/tideline/bom.json
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tideline-spark" \
      org.opencontainers.image.description="Drivers and executors of Tideline's table services on Spark" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="debian:bookworm-slim"
WORKDIR /tmp
USER 1000:1000
STOPSIGNAL SIGTERM
# A driver or an executor is watched by Spark and by the launcher; this only tells whether Java runs in the container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import pathlib, sys; sys.exit(not any(b'java' in p.read_bytes() for p in pathlib.Path('/proc').glob('[0-9]*/cmdline')))"]
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/tideline/bin/python", "/opt/spark/bin/entrypoint.py"]
CMD ["python", "-c", "import importlib.metadata; print('tideline', importlib.metadata.version('tideline-hudi'))"]
