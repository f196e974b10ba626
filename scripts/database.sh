# Shared by the scripts that run PostgreSQL on ext4 on a Forebay volume, through nbdfuse and a loop
# device. Source it in bash, after common.sh. $dir is the script's own temporary directory; all is
# ended and removed at the script's exit.
#
# The script sets `forebay` (the program), `memory` (of its server), `scale` (of pgbench) and
# `settings` (lines for postgresql.conf).
# shellcheck shell=bash disable=SC2119,SC2120,SC2154

need nbdfuse=libnbd-bin fusermount3=fuse3 mkfs.ext4=e2fsprogs runuser=util-linux
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || install postgresql
programs=$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -1)
PATH=$programs:$PATH

# Forebay refuses a journal in memory, where /tmp may be.
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/forebay-database.XXXXXX")
state=$(mktemp -d)
chmod 755 "$dir"
mkdir -p "$dir"/{mnt,fuse,run}
chown postgres "$dir/run"
server=
fuse=
loop=
postmaster=
# Options of the loop device.
loop_options=()

clean() {
  kill_postgres || true
  detach || true
  [[ -z $server ]] || kill -9 "$server" 2>/dev/null || true
  rm -rf "$dir" "$state"
}
trap clean EXIT

gave_up() {
  tail -n 20 "$dir/log" "$dir/run/postgres.log" 2>/dev/null || true
  fail "$*"
}

as_postgres() { (cd / && runuser -u postgres -- env "PATH=$PATH" "$@"); }
query() { psql -h "$dir/run" -U postgres -AtXq -d bench -c "$1"; }

# serve VOLUME: starts the server.
serve() {
  rm -f "$dir/nbd.sock"
  "$forebay" serve --volume "$1" --nbd "unix:$dir/nbd.sock" --memory "$memory" \
    --keeper no --state "$state" >>"$dir/log" 2>&1 &
  server=$!
  wait_for_socket "$dir/nbd.sock" "$server" || gave_up "the server did not start"
}

attach() {
  local tries=0
  nbdfuse "$dir/fuse/disk" "nbd+unix:///v?socket=$dir/nbd.sock" 2>>"$dir/nbdfuse.log" &
  fuse=$!
  # It fails in various ways when its server is dead; ignore them.
  disown
  until [[ -e $dir/fuse/disk ]]; do
    tries=$((tries + 1))
    ((tries < 300)) || gave_up "nbdfuse did not mount"
    sleep 0.1
  done
  loop=$(losetup -f --show "${loop_options[@]}" "$dir/fuse/disk")
}

# detach: also when the server below is dead.
detach() {
  local tries
  for ((tries = 0; tries < 100; tries++)); do
    mountpoint -q "$dir/mnt" || break
    umount "$dir/mnt" 2>/dev/null || sleep 0.1
  done
  mountpoint -q "$dir/mnt" && fail "the file system can not be unmounted"
  [[ -z $loop ]] || losetup -d "$loop"
  loop=
  [[ -z $fuse ]] || fusermount3 -u "$dir/fuse" 2>/dev/null || fusermount3 -uz "$dir/fuse" || true
  [[ -z $fuse ]] || kill -9 "$fuse" 2>/dev/null || true
  fuse=
}

start_postgres() {
  as_postgres pg_ctl -s -w -t 300 -D "$dir/mnt/data" -l "$dir/run/postgres.log" \
    -o "-c listen_addresses= -c unix_socket_directories=$dir/run" start ||
    gave_up "PostgreSQL does not come up"
  postmaster=$(head -1 "$dir/mnt/data/postmaster.pid")
}

stop_postgres() {
  as_postgres pg_ctl -s -w -t 300 -D "$dir/mnt/data" -m fast stop ||
    gave_up "PostgreSQL does not stop"
  postmaster=
}

# its_processes: the postmaster and its children.
its_processes() {
  if [[ -n $postmaster ]]; then
    echo "$postmaster"
    pgrep -P "$postmaster" || true
  fi
}

# kill_postgres [PID...]: together with these processes.
kill_postgres() {
  local pids pid
  mapfile -t pids < <(its_processes)
  kill -9 "$@" "${pids[@]}" 2>/dev/null || true
  (($# == 0)) || wait "$@" 2>/dev/null || true
  for pid in "${pids[@]}"; do
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
  done
  postmaster=
}

stop_server() {
  kill -TERM "$server"
  wait "$server" || gave_up "the server did not stop cleanly"
  server=
}

# make_database VOLUME: ext4 with a database for pgbench.
make_database() {
  say "making ext4 and a database of scale $scale"
  serve "$1"
  attach
  mkfs.ext4 -q -F "$loop"
  mount "$loop" "$dir/mnt"
  chown postgres "$dir/mnt"
  as_postgres initdb -D "$dir/mnt/data" -k -A trust >"$dir/initdb.log" 2>&1 ||
    { cat "$dir/initdb.log"; fail "initdb failed"; }
  printf '%s\n' "$settings" >>"$dir/mnt/data/postgresql.conf"
  # Unflushed data may be lost.
  sync -f "$dir/mnt/data/postgresql.conf"
  start_postgres
  createdb -h "$dir/run" -U postgres bench
  pgbench -h "$dir/run" -U postgres -i -q -s "$scale" bench >"$dir/init.log" 2>&1 ||
    { cat "$dir/init.log"; fail "pgbench can not make its tables"; }
}
