#!/bin/sh
# What the tests need beside Python: gcc, for what pip compiles of the engine, PostgreSQL and Redis (they start
# servers of their own on free ports and stop them), bubblewrap, the sandbox of untrusted code, libseccomp, which compiles the container's profile,
# faketime, a wrong clock, and Chromium, which shows the dashboard. Installs what is missing on Debian as root; elsewhere says what to install.
find_postgres() { command -v pg_ctl || ls -d /usr/lib/postgresql/*/bin/pg_ctl 2>/dev/null | tail -n 1; }
missing=""
command -v gcc >/dev/null || missing="$missing gcc libc6-dev"
command -v redis-server >/dev/null || missing="$missing redis-server"
command -v bwrap >/dev/null || missing="$missing bubblewrap"
command -v faketime >/dev/null || missing="$missing faketime"
command -v chromium >/dev/null || missing="$missing chromium"
[ -n "$(ls /usr/lib*/libseccomp.so.2 /usr/lib*/*/libseccomp.so.2 2>/dev/null)" ] || missing="$missing libseccomp2"
[ -n "$(find_postgres)" ] || missing="$missing postgresql"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null && exit 0
fi
echo "The tests need these programs, and they are not installed:$missing" >&2
exit 1
