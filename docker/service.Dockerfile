# The image of all services and of the command line, without Java and Spark. The context is the repository; docs/images.md explains the stages.
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
COPY requirements/service.txt /build/requirements/
RUN /opt/tools/bin/pip --python /opt/tideline/bin/python install -q --no-cache-dir --no-compile --only-binary :all: \
    --require-hashes -r /build/requirements/service.txt
COPY docker/pruning.py /build/docker/
RUN /opt/tools/bin/python /build/docker/pruning.py /opt/tideline
COPY pyproject.toml README.md /build/
COPY libs /build/libs
COPY services /build/services
RUN /opt/tools/bin/pip wheel -q --no-cache-dir --no-deps --no-build-isolation --wheel-dir /build/wheels /build \
    && /opt/tools/bin/pip --python /opt/tideline/bin/python install -q --no-cache-dir --no-compile --no-deps /build/wheels/*.whl

FROM ${BASE} AS runtime
# Without certificate authorities no client of an object store can be made, not even for a plain HTTP endpoint.
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends ca-certificates python3 \
    && useradd --uid 1000 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin tideline \
    && install -d -o tideline -g tideline /var/lib/tideline \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/cache/debconf /var/log/*
COPY --from=packages /opt/tideline /opt/tideline
ENV PATH=/opt/tideline/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TIDELINE_STATE_FOLDER=/var/lib/tideline

FROM runtime AS materials
COPY --from=tools /opt/tools /opt/tools
COPY docker/bill_of_materials.py docker/components.py /build/docker/
WORKDIR /build
ARG VERSION=0.0.0
RUN /opt/tools/bin/python -m docker.bill_of_materials --name tideline-service --version ${VERSION} \
    --environment /opt/tideline --output /build/bom.json
# What is left out must not be missed.
RUN for service in mirror planner launcher cleaner lock_service ingest webhooks changes console catalog; do python -m tideline_${service} --version || exit 1; done \
    && tideline --version \
    && python -c "import tideline_spark.worker" \
    && AWS_REGION=none python -c "from tideline_table.storage import open_storage; open_storage('s3://bucket/table')"

FROM runtime
COPY docker/health.py /opt/health.py
COPY --from=materials /build/bom.json /usr/share/tideline/bom.json
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tideline-service" \
      org.opencontainers.image.description="Services and command line of Tideline, table services for Apache Hudi tables" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="debian:bookworm-slim"
WORKDIR /var/lib/tideline
USER 1000:1000
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "/opt/health.py"]
ENTRYPOINT ["python", "-m"]
CMD ["tideline_cli.main", "--version"]
