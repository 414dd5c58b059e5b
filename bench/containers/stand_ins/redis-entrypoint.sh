#!/bin/sh
# As the official image's: changes to the user redis for redis-server only.
set -e
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
  find . \! -user redis -exec chown redis '{}' +
  exec setpriv --reuid=redis --regid=redis --clear-groups "$0" "$@"
fi
umask 0077
exec "$@"
