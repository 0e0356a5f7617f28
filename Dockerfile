# The images of tpujob: `operator` (operator, coordinator, the agent to inject) and `trainer`.
#
#   docker build --target operator --tag tpujob/operator:dev .
#   docker build --target trainer --build-arg LOCK=tpu --tag tpujob/trainer:dev .      # for TPUs
#   python -m localcluster image build all      # the same file, with or without a Docker engine
#
# Each target is a layer of dependencies, which depends on the lock alone, below a layer of our
# code, so that a change of code rebuilds and reaches the nodes in seconds. The two secrets are
# optional: a pip configuration and a CA bundle of a host that installs from its own mirror.

FROM python:3.13-slim AS base
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1
# The official base ships the standard library without bytecode, and no user of ours could write
# it: every start would compile again. A base that has it already skips through this in a second.
RUN groupadd --gid 65532 tpujob \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tpujob \
 && python -m compileall -q -j 0 "$(python -c 'import os; print(os.path.dirname(os.__file__))')"


FROM base AS operator-dependencies
COPY requirements/operator.txt /opt/tpujob/requirements.txt
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem \
    --mount=type=cache,id=tpujob-pip,target=/var/cache/pip \
    export PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_CACHE_DIR=/var/cache/pip \
 && python -m venv /opt/venv \
 && pip install --disable-pip-version-check --root-user-action ignore --no-compile \
      --only-binary :all: --require-hashes --requirement /opt/tpujob/requirements.txt \
 && pip uninstall --yes --quiet --root-user-action ignore pip \
 && echo /opt/tpujob/lib > "$(python -c 'import site; print(site.getsitepackages()[0])')/tpujob.pth" \
 && find /opt/venv -type d -name tests -prune -exec rm -r {} + \
 && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib


FROM base AS trainer-dependencies
COPY requirements/trainer.txt requirements/tpu.txt /opt/tpujob/
# For real TPUs: --build-arg LOCK=tpu, which adds libtpu (700 MB). On CPU it would only log errors.
ARG LOCK=trainer
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem \
    --mount=type=cache,id=tpujob-pip,target=/var/cache/pip \
    export PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_CACHE_DIR=/var/cache/pip \
 && python -m venv /opt/venv \
 && pip install --disable-pip-version-check --root-user-action ignore --no-compile \
      --only-binary :all: --require-hashes --requirement "/opt/tpujob/$LOCK.txt" \
 && pip uninstall --yes --quiet --root-user-action ignore pip \
 && echo /opt/tpujob/lib > "$(python -c 'import site; print(site.getsitepackages()[0])')/tpujob.pth" \
 && find /opt/venv -type d -name tests -prune -exec rm -r {} + \
 && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib


FROM base AS operator-code
COPY trainer/tpujob /opt/tpujob/lib/tpujob
COPY trainer/tpujob_agent /opt/tpujob/lib/tpujob_agent
COPY trainer/tpujob_tpu /opt/tpujob/lib/tpujob_tpu
COPY operator/tpujob_coordinator /opt/tpujob/lib/tpujob_coordinator
COPY operator/tpujob_operator /opt/tpujob/lib/tpujob_operator
RUN cd /opt/tpujob/lib && python -m tpujob_agent.build /opt/tpujob/agent.pyz \
 && find . -name __pycache__ -prune -exec rm -r {} + \
 && python -m compileall -q --invalidation-mode unchecked-hash .


FROM base AS trainer-code
COPY trainer/tpujob /opt/tpujob/lib/tpujob
COPY trainer/tpujob_agent /opt/tpujob/lib/tpujob_agent
COPY trainer/tpujob_ahead /opt/tpujob/lib/tpujob_ahead
COPY trainer/tpujob_checkpoint /opt/tpujob/lib/tpujob_checkpoint
COPY trainer/tpujob_data /opt/tpujob/lib/tpujob_data
COPY trainer/tpujob_tpu /opt/tpujob/lib/tpujob_tpu
COPY trainer/tpujob_trainer /opt/tpujob/lib/tpujob_trainer
RUN python -m compileall -q --invalidation-mode unchecked-hash /opt/tpujob/lib


FROM operator-dependencies AS operator
COPY --from=operator-code /opt/tpujob /opt/tpujob
ARG VERSION=0.0.0
LABEL org.opencontainers.image.title="tpujob operator" \
      org.opencontainers.image.description="Runs JAX training jobs on TPU slices and keeps them productive" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="python:3.13-slim"
# By number: the kubelet can then see that runAsNonRoot holds.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "tpujob_operator"]


FROM trainer-dependencies AS trainer
COPY --from=trainer-code /opt/tpujob /opt/tpujob
ARG VERSION=0.0.0
LABEL org.opencontainers.image.title="tpujob trainer" \
      org.opencontainers.image.description="A small sharded JAX trainer, run by the tpujob operator" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="python:3.13-slim"
# Root, as TPU images are: /dev/accel* and /dev/vfio belong to root, and so does a hostPath folder,
# which no fsGroup changes. Nothing in the image is written, so a pod may set any runAsUser whose
# checkpoint volume is writable.
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "tpujob_trainer"]
