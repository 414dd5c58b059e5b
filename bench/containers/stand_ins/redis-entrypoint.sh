#!/bin/sh
# Like the official image's entrypoint, changes to the user redis only for redis-server.
set -e
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
  find . \! -user redis -exec chown redis '{}' +
  exec setpriv --reuid=redis --regid=redis --clear-groups "$0" "$@"
fi
umask 0077
exec "$@"
