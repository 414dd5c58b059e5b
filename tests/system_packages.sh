#!/bin/sh
# System packages of the tests: gcc (compiles the engine's extension), PostgreSQL and Redis (the tests start their own
# servers on free ports), bubblewrap (sandbox of untrusted code), libseccomp (compiles the container's profile),
# faketime (wrong clocks), Chromium's headless shell (opens the dashboard) and iproute2 (several hosts as network
# namespaces). Installs missing ones on Debian as root, otherwise prints their names.
find_postgres() { command -v pg_ctl || ls -d /usr/lib/postgresql/*/bin/pg_ctl 2>/dev/null | tail -n 1; }
missing=""
command -v gcc >/dev/null || missing="$missing gcc libc6-dev"
command -v redis-server >/dev/null || missing="$missing redis-server"
command -v bwrap >/dev/null || missing="$missing bubblewrap"
command -v faketime >/dev/null || missing="$missing faketime"
command -v ip >/dev/null || missing="$missing iproute2"
command -v chromium-headless-shell >/dev/null || missing="$missing chromium-headless-shell"
[ -n "$(ls /usr/lib*/libseccomp.so.2 /usr/lib*/*/libseccomp.so.2 2>/dev/null)" ] || missing="$missing libseccomp2"
[ -n "$(find_postgres)" ] || missing="$missing postgresql"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null && exit 0
fi
echo "Missing system packages for the tests:$missing" >&2
exit 1
