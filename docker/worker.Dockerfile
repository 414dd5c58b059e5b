# A GPU worker: Celery claims jobs and starts the engine as a child process.
# torch's CUDA wheels bring their own CUDA libraries; the host's driver comes with the container toolkit.
FROM python:3.11.14-slim-bookworm AS dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# some packages of the extra reasoning-gym are compiled
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
# an index of CPU builds, see compose.cpu.yaml; by default pip's own index, which has the CUDA builds
ARG TORCH_INDEX_URL=
# the largest layer comes first, because it changes only with the version
RUN pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "torch==2.13.0"
# installed for empty packages, so that a changed source line does not install the dependencies again
COPY pyproject.toml ./
RUN for name in grpo_engine service worker migrations; do mkdir $name && touch $name/__init__.py; done \
 && touch README.md && pip install --editable \
    ".[service,worker,ray,engine,quantization,mcp,reasoning-gym]" "torch==2.13.0"

FROM dependencies AS sources
RUN pip install "setuptools>=77"
COPY grpo_engine/models/fast/native grpo_engine/models/fast/native
# for setuptools the extension is optional, so a failed compilation is no error; here it must be one
RUN python -c "import setuptools; setuptools.setup()" build_ext --inplace && rm -r build \
 && ls grpo_engine/models/fast/native/_compiled*.so
COPY grpo_engine grpo_engine
COPY service service
COPY worker worker
COPY migrations migrations
# with umask 077, only its owner could read the checkout
RUN chmod -R a+rX /src

FROM python:3.11.14-slim-bookworm
# bubblewrap: the sandbox of untrusted graders and tools; it needs user namespaces, see compose.yaml
# gcc: torch compiles formulas for GPUs with it (grpo_engine/models/fast/fused.py)
RUN apt-get update && apt-get install --yes --no-install-recommends bubblewrap gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 grpo \
 && useradd --uid 10001 --gid grpo --no-create-home --home-dir /var/lib/grpo --shell /usr/sbin/nologin grpo \
 && install --directory --owner grpo --group grpo --mode 700 /var/lib/grpo /srv/artifacts
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=sources /src /src
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    GRPO_MODE=production GRPO_HOME=/var/lib/grpo HF_HOME=/var/lib/grpo/hub
WORKDIR /src
USER 10001:10001
# SIGTERM is Celery's warm shutdown: the engine writes a checkpoint, and the job is requeued
STOPSIGNAL SIGTERM
CMD ["celery", "-A", "worker.app", "worker", "--loglevel=INFO"]
