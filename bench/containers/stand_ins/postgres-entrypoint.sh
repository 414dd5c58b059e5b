#!/bin/bash
# Does what the official image's entrypoint does with POSTGRES_USER, POSTGRES_DB and POSTGRES_PASSWORD.
set -eu
if [ "$1" = postgres ] && [ "$(id -u)" = 0 ]; then
  chown -R postgres "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$BASH_SOURCE" "$@"
fi
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") \
    --auth-local=trust --auth-host=scram-sha-256
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  # no TCP until the database exists, so that a health check over TCP does not pass too early
  pg_ctl -D "$PGDATA" -o "-c listen_addresses=''" -w start
  createdb --username="$POSTGRES_USER" --maintenance-db=postgres "$POSTGRES_DB"
  pg_ctl -D "$PGDATA" -m fast -w stop
  echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
fi
exec "$@"
