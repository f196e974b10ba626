#!/usr/bin/env bash
# Rehearses one power failure from end to end, and prints how long each step takes: fio writes to a
# write-back volume under a UPS until SIZE is dirty, mains fails and the battery runs low, dirty
# data goes to the vault and is read back, everything is killed at once, and the next start writes
# it to the disk. Then all data is verified, through the server, and on the disk alone after a
# stop.
#
#   scripts/power-failure.sh [SIZE]
#
# The default SIZE is 256M. The script needs at most twice that amount of memory, and two and a
# half times of space in FOLDER (default: the build directory), which must not be in memory for
# realistic figures. FOREBAY selects another program than the release build.
#
# The disk is behind a separate server, as slow as a busy hard disk until mains fails, so that
# almost nothing reaches it, and as fast as the file afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

bytes=$(numfmt --from=iec "${1:-256M}")
forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need fio=fio jq=jq

dir=$(mktemp -d -p "${FOLDER:-$(target_dir)}")
uri="nbd+unix:///v?socket=$dir/nbd.sock"
# A little of it reaches the disk before mains fails.
volume_bytes=$(((bytes * 17 / 16 + (1 << 20)) >> 20 << 20))
# Keeps fio's writes in memory until mains fails: otherwise large writes are not delayed, and above
# half of the pool writeback starts at once.
held="gather-below=1MiB"
memory_bytes=$((volume_bytes * 2 + (128 << 20)))
disk=
server=
supply=
clean() {
  local process
  rm -f "$dir/words"
  [[ -z $supply ]] || wait "$supply" || true
  supply=
  for process in "$server" "$disk"; do
    [[ -z $process ]] || kill -9 "$process" 2>/dev/null || true
  done
  rm -rf "$dir"
}
trap clean EXIT

gave_up() {
  tail -n 20 "$dir"/*.log 2>/dev/null || true
  fail "$*"
}

# feed: writes the readings of the UPS, as long as it exists.
feed() {
  local words
  while words=$(cat "$dir/words" 2>/dev/null); do
    printf 'ups.status: %s\nbattery.charge: 100\nbattery.runtime: 1800\n' "$words" \
      >"$dir/supply.new"
    mv "$dir/supply.new" "$dir/supply"
    sleep 0.2
  done
}

# set_ups WORDS: the UPS status from now on.
set_ups() {
  printf '%s' "$1" >"$dir/words.new"
  mv "$dir/words.new" "$dir/words"
}

# start_disk LAYERS: the disk, behind LAYERS.
start_disk() {
  rm -f "$dir/disk.sock"
  "$forebay" serve --volume "d=$1$dir/disk.img,mode=bypass" --nbd "unix:$dir/disk.sock" \
    --memory 64MiB --keeper no --state "$dir/disk-state" >>"$dir/disk.log" 2>&1 &
  disk=$!
  wait_for_socket "$dir/disk.sock" "$disk" || gave_up "the disk did not start"
}

# start_server: clients are admitted once the socket exists.
start_server() {
  rm -f "$dir/nbd.sock"
  "$forebay" serve --keeper no --state "$dir/state" --nbd "unix:$dir/nbd.sock" \
    --memory "$memory_bytes" --vault "$dir/vault" \
    --ups "lab=file:$dir/supply" --ups-settle-seconds 1 \
    --volume "v=nbd+unix:///d?socket=$dir/disk.sock,mode=write-back,protection=ups,$held" \
    >>"$dir/server.log" 2>&1 &
  server=$!
}

status() { "$forebay" status --json --state "$dir/state"; }

# wait_until SECONDS FILTER: waits until the status matches the filter.
wait_until() {
  local end=$((SECONDS + $1))
  until status 2>>"$dir/status.log" | jq -e "$2" >/dev/null; do
    kill -0 "$server" 2>/dev/null || gave_up "the server has ended before '$2'"
    ((SECONDS < end)) || gave_up "not within $1 s: $2"
    sleep 0.05
  done
}

# wait_for_clients SECONDS: waits until the server admits clients.
wait_for_clients() {
  local end=$((SECONDS + $1))
  until [[ -S $dir/nbd.sock ]]; do
    kill -0 "$server" 2>/dev/null || gave_up "the server did not start"
    ((SECONDS < end)) || gave_up "the server let nobody in within $1 s"
    sleep 0.01
  done
}

now_ms() { date +%s%3N; }

# row WHAT BYTES MS
row() {
  awk -v what="$1" -v bytes="$2" -v ms="$3" 'BEGIN {
    printf "| %-44s | %6.2f GiB | %7.2f s | %6.2f GiB/s |\n", what, bytes / 2^30, ms / 1000,
      bytes / 2^30 / (ms / 1000 + 1e-9) }' >>"$dir/table"
}

# verify WHAT FIO-OPTION...: checks that each block is as fio wrote it.
verify() {
  local what=$1 begin
  shift
  begin=$(now_ms)
  fio --name=fill --rw=write --bs=256k --iodepth=8 --size="$volume_bytes" --verify=crc32c \
    --verify_only --verify_fatal=1 --verify_state_save=0 "$@" >"$dir/fio.log" 2>&1 ||
    gave_up "$what: wrong data"
  row "$what" "$volume_bytes" "$(($(now_ms) - begin))"
}

truncate -s "$volume_bytes" "$dir/disk.img"
set_ups OL
feed &
supply=$!
start_disk "rate(bandwidth=16MiB/s):"
start_server
wait_for_clients 60
wait_until 120 '.power.write_back_allowed'

say "filling, until $(numfmt --to=iec "$bytes") are dirty"
begin=$(now_ms)
fio --name=fill --ioengine=nbd --uri="$uri" --rw=write --bs=256k --iodepth=8 \
  --size="$volume_bytes" --verify=crc32c --do_verify=0 --verify_state_save=0 \
  >"$dir/fio.log" 2>&1 ||
  gave_up "fio failed"
row "written by fio" "$volume_bytes" "$(($(now_ms) - begin))"
wait_until 5 ".power.dirty_bytes >= $bytes"
status >"$dir/before.json"
say "$(jq -r '.power.forecast' "$dir/before.json"), dirty" \
  "$(jq '.power.dirty_bytes' "$dir/before.json" | numfmt --to=iec), at most" \
  "$(jq '.power.dirty_bytes_max' "$dir/before.json" | numfmt --to=iec); vault" \
  "$(jq '.vault.write_bytes_per_second' "$dir/before.json" | numfmt --to=iec) a second"

say "mains fails, and the battery is low"
failed=$(now_ms)
set_ups "OB DISCHRG LB"
# The status reports this during the dump, not only afterwards.
wait_until 60 '.power.halted and .vault.state == "dumping"'
row "until writes are halted" 0 "$(($(now_ms) - failed))"
wait_until 600 '.vault.last_dump != null and .vault.state != "dumping"'
status >"$dir/dumped.json"
jq -e '.vault.last_dump.verified' "$dir/dumped.json" >/dev/null ||
  gave_up "the dump was not verified"
dumped=$(jq '.vault.last_dump.bytes' "$dir/dumped.json")
row "dumped and sealed" "$dumped" "$(jq '.vault.last_dump.sealed_ms' "$dir/dumped.json")"
row "the same, and read back" "$dumped" "$(jq '.vault.last_dump.total_ms' "$dir/dumped.json")"

say "power is gone"
kill -9 "$server" "$disk"
wait "$server" "$disk" 2>/dev/null || true
lacking=$((volume_bytes / 512 - $(stat -c %b "$dir/disk.img")))
say "the disk lacks $((lacking * 512 >> 20)) MiB, the vault has $((dumped >> 20)) MiB"

say "power is back"
set_ups OL
start_disk ""
begin=$(now_ms)
start_server
wait_for_clients 600
row "started, and everything on the disk" "$dumped" "$(($(now_ms) - begin))"
status | jq -e '.vault.held == []' >/dev/null || gave_up "the vault still holds something"
verify "verified through the server" --ioengine=nbd --uri="$uri"
wait_until 120 '.power.write_back_allowed'
kill -TERM "$server"
wait "$server" || gave_up "the server did not stop cleanly"
server=
kill -TERM "$disk"
wait "$disk" || gave_up "the disk did not stop cleanly"
disk=
verify "verified on the disk alone" --ioengine=libaio --direct=1 --filename="$dir/disk.img"
cat "$dir/table"
say "the times are information; only the verification can fail"
