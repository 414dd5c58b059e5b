# Stands in for python:*-slim-bookworm: Debian's Python under the name that the image has, and this machine's pip.conf.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv libpython3-dev \
 && rm -rf /var/lib/apt/lists/* && ln -s /usr/bin/python3 /usr/local/bin/python
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
COPY wheels /opt/wheels
CMD ["python"]
