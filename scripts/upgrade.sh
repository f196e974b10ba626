#!/usr/bin/env bash
# Checks that this version reads what an older program leaves behind: its journals after a kill, in
# three modes and with both I/O engines; the vault of a power failure; and the pool that the keeper
# preserves, through an upgrade and through a crash.
#
#   scripts/upgrade.sh PROGRAM
#
# PROGRAM is an older `forebay` program. SEEDS (3) is the number of kills of each kind. The files
# are in FOLDER (default: the build directory).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

old=$(realpath "${1:?usage: upgrade.sh PROGRAM}")
programs=$(realpath "$(target_dir)/release")
for program in "$old" "$programs"/{forebay,model-client,batch-client}; do
  [[ -x $program ]] || fail "$program is not built: run cargo build --release --workspace --bins"
done
need jq=jq

dir=$(mktemp -d -p "${FOLDER:-$(target_dir)}" upgrade.XXXXXX)
keeper=
clean() {
  [[ -z $keeper ]] || kill -KILL "$keeper" $(pgrep -P "$keeper") 2>/dev/null || true
  rm -rf "$dir"
}
trap clean EXIT

gave_up() {
  tail -n 20 "$dir"/*/log "$dir"/*.log 2>/dev/null || true
  fail "$*"
}

# old_for STARTS: from now on, `$dir/programs/forebay` is the old program for that many servers, and
# then the new one. All other commands go to the new one.
old_for() {
  mkdir -p "$dir/programs"
  echo 0 >"$dir/starts"
  cat >"$dir/programs/forebay" <<WRAPPER
#!/bin/bash
program='$programs/forebay'
if [[ \$1 == serve ]]; then
  starts=\$(<'$dir/starts')
  echo \$((starts + 1)) >'$dir/starts'
  ((starts >= $1)) || program='$old'
fi
exec "\$program" "\$@"
WRAPPER
  chmod +x "$dir/programs/forebay"
}

# journal MODE IO SEED: a journal that the old program wrote until it was killed.
journal() {
  rm -rf "$dir/server" "$dir/disk.img" "$dir/journal"
  truncate -s 64M "$dir/disk.img"
  truncate -s 48M "$dir/journal"
  old_for 1
  "$programs/model-client" --programs "$dir/programs" --folder "$dir/server" \
    --backing "$dir/disk.img" --mode "$1" --journal "$dir/journal" --io "$2" --operations 20000 \
    --seed "$3" --kills 1 >"$dir/model.log" 2>&1 || gave_up "$1, $2, seed $3"
  say "journal: $1, $2, seed $3: $(tail -n 1 "$dir/model.log")"
}

status() { "$programs/forebay" status --json --state "$dir/state"; }

# wait_for_server NOT: until a server with another process id than NOT answers; sets `server`.
wait_for_server() {
  local i
  for ((i = 0; i < 600; i++)); do
    server=$(status 2>/dev/null | jq .pid) || server=
    if [[ -n $server && $server != "$1" ]]; then return; fi
    kill -0 "$keeper" 2>/dev/null || gave_up "the keeper has ended"
    sleep 0.1
  done
  gave_up "no new server within 60 s"
}

# load OPTION...
load() {
  "$programs/batch-client" --socket "$dir/nbd.sock" --export v --block 4096 --span $((32 << 20)) \
    --count 8192 --pattern sequential "$@" >"$dir/load.log" 2>&1
}

# kept HOW: dirty data in a pool that passes from the old program to the new one.
kept() {
  local dirty
  rm -rf "$dir/state" "$dir/disk.img"
  truncate -s 64M "$dir/disk.img"
  cp "$old" "$dir/forebay"
  # Its disk is slow, so that the data are still dirty when the programs change.
  "$dir/forebay" serve --keeper yes --state "$dir/state" --nbd "unix:$dir/nbd.sock" \
    --memory 128MiB --volume \
    "v=rate(bandwidth=1MiB/s):$dir/disk.img,mode=write-back,protection=none,accept-loss=yes" \
    >>"$dir/server.log" 2>&1 &
  keeper=$!
  wait_for_server none
  load --op write || gave_up "the load failed"
  dirty=$(status | jq '[.volumes[].dirty_bytes] | add')
  ((dirty >= 16 << 20)) || gave_up "only $dirty bytes are dirty"
  cp "$programs/forebay" "$dir/forebay.new"
  mv "$dir/forebay.new" "$dir/forebay"
  if [[ $1 == upgrade ]]; then
    "$programs/forebay" upgrade --state "$dir/state" >>"$dir/server.log" 2>&1 ||
      gave_up "the upgrade failed"
  else
    kill -9 "$server"
  fi
  wait_for_server "$server"
  load --op read --verify || gave_up "$1: wrong data through the new program"
  kill -TERM "$keeper"
  wait "$keeper" || gave_up "$1: the new program did not stop cleanly"
  "$programs/forebay" serve --keeper no --state "$dir/state" --nbd "unix:$dir/nbd.sock" \
    --memory 64MiB --volume "v=$dir/disk.img,mode=bypass" >>"$dir/server.log" 2>&1 &
  keeper=$!
  wait_for_server none
  load --op read --verify || gave_up "$1: wrong data on the disk"
  kill -TERM "$keeper"
  wait "$keeper" || gave_up "$1: the second stop failed"
  keeper=
  say "kept pool, $1: $((dirty >> 20)) MiB dirty, 32 MiB verified, twice"
}

for ((seed = 1; seed <= ${SEEDS:-3}; seed++)); do
  for mode in journal ordered journal-flush; do
    for io in io_uring epoll; do journal "$mode" "$io" "$seed"; done
  done
done
kept upgrade
kept crash
# Its disk and its server before the power failure are of the old version, those after it are new.
old_for 2
FOREBAY="$dir/programs/forebay" FOLDER="$dir" scripts/power-failure.sh 128M \
  >"$dir/power.log" 2>&1 || gave_up "the vault of a power failure"
say "vault: a dump of 128 MiB read and verified"
