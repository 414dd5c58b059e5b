# The API, the migrations and the sweeper: everything but training. It contains no torch.
FROM python:3.11.14-slim-bookworm AS dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# some packages of the extra reasoning-gym are compiled
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
# installed for empty packages, so that a changed source line does not install the dependencies again
COPY pyproject.toml ./
RUN for name in grpo_engine service worker migrations; do mkdir $name && touch $name/__init__.py; done \
 && touch README.md && pip install --editable ".[service,worker,mcp,reasoning-gym]"

FROM dependencies AS sources
# the migrations are found beside the packages, so the checkout itself is what runs
COPY grpo_engine grpo_engine
COPY service service
COPY worker worker
COPY migrations migrations
# with umask 077, only its owner could read the checkout
RUN chmod -R a+rX /src

FROM python:3.11.14-slim-bookworm
# the sandbox of untrusted graders; compose.yaml allows it only to the worker, and the API runs no such grader
RUN apt-get update && apt-get install --yes --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 grpo \
 && useradd --uid 10001 --gid grpo --no-create-home --home-dir /var/lib/grpo --shell /usr/sbin/nologin grpo \
 && install --directory --owner grpo --group grpo --mode 700 /var/lib/grpo /srv/artifacts
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=sources /src /src
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    GRPO_MODE=production GRPO_HOME=/var/lib/grpo
WORKDIR /src
USER 10001:10001
EXPOSE 8000
CMD ["python", "-m", "service", "--host", "0.0.0.0", "--port", "8000"]
