#!/usr/bin/env bash
# Runs common clients against a real server, in one mode with one I/O engine, on a disk at least
# three times as large as its memory. All written data is read back and compared, if possible by
# another program. Finally the server is stopped, and the file behind it must contain the same data.
#
#   scripts/clients.sh MODE IO [SIZE_MIB]
#
# MODE is write-through, write-back or bypass; IO is io_uring or epoll. FOREBAY selects another
# program than the release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

mode=${1:?usage: clients.sh MODE IO [SIZE_MIB]}
io=${2:?usage: clients.sh MODE IO [SIZE_MIB]}
mib=${3:-256}
forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need file=file nbdinfo=libnbd-bin nbdcopy=libnbd-bin qemu-img=qemu-utils qemu-io=qemu-utils fio=fio

dir=$(mktemp -d)
disk=$dir/disk.img
socket=$dir/nbd.sock
uri="nbd+unix:///v?socket=$socket"
options="mode=$mode"
if [[ $mode == write-back ]]; then options+=",protection=none,accept-loss=yes"; fi
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT

start() {
  "$forebay" serve --volume "v=$disk,$options" --nbd "unix:$socket" --memory 32MiB --io "$io" \
    --state "$dir/state" >"$dir/log" 2>&1 &
  server=$!
  wait_for_socket "$socket" "$server" || { cat "$dir/log"; fail "the server did not start"; }
}

stop() {
  local status=0
  kill -TERM "$server"
  wait "$server" || status=$?
  server=
  ((status == 0)) || { cat "$dir/log"; fail "the server ended with $status"; }
}

sum() { sha256sum <"$1" | cut -d ' ' -f 1; }

# same FILE: checks that a client reads the content of FILE.
same() {
  nbdcopy "$uri" "$dir/back.img"
  cmp "$1" "$dir/back.img"
}

sizes() {
  say "nbdinfo: the size, and the server's capabilities"
  [[ $(nbdinfo --size "$uri") == $((mib << 20)) ]] || fail "the size is wrong"
  nbdinfo --json "$uri" >"$dir/info.json"
  nbdinfo --can flush "$uri" || fail "the server can't flush"
  nbdinfo --list "nbd+unix://?socket=$socket" | grep -q 'export="v"' || fail "v is not listed"
}

copies() {
  say "nbdcopy: in and out, with several connections, and compared"
  head -c "$((mib << 19))" /dev/urandom >"$dir/source.img"
  truncate -s "${mib}M" "$dir/source.img"
  nbdcopy --flush "$dir/source.img" "$uri"
  same "$dir/source.img"
  nbdcopy --connections=4 --requests=64 "$uri" "$dir/back4.img"
  [[ $(sum "$dir/source.img") == "$(sum "$dir/back4.img")" ]] || fail "the copies differ"
}

images() {
  say "qemu-img: convert, compare, and a qcow2 image inside the volume, checked"
  qemu-img convert -n -f raw -O raw "$dir/source.img" "$uri"
  qemu-img compare -q -f raw -F raw "$dir/source.img" "$uri"
  head -c "$((mib << 18))" /dev/urandom >"$dir/small.img"
  qemu-img create -q -f qcow2 "$uri" "$((mib >> 2))M"
  qemu-img convert -n -f raw -O qcow2 "$dir/small.img" "$uri"
  qemu-img check -q -f qcow2 "$uri"
  qemu-img compare -q -f raw -F qcow2 "$dir/small.img" "$uri"
}

patterns() {
  say "qemu-io: patterns, zeroes, discards, forced writes, single sectors"
  local commands=(
    "write -P 0x5a 0 1M" "read -P 0x5a 0 1M"
    "write -P 0xa5 512 512" "read -P 0x5a 0 512" "read -P 0xa5 512 512" "read -P 0x5a 1024 512"
    "write -z 64k 64k" "read -P 0 64k 64k" "read -P 0x5a 128k 4k"
    "write -z -u 256k 64k" "read -P 0 256k 64k"
    "write -f -P 0x77 1000k 8k" "read -P 0x77 1000k 8k" "flush"
    "discard 512k 64k" "write -P 0x11 512k 64k" "read -P 0x11 512k 64k"
    "write -P 0x33 3584 9k" "read -P 0x33 3584 9k"
    "aio_write -P 0x44 2M 1M" "aio_write -P 0x45 4M 1M" "aio_flush"
    "read -P 0x44 2M 1M" "read -P 0x45 4M 1M"
  )
  local arguments=() command
  for command in "${commands[@]}"; do arguments+=(-c "$command"); done
  qemu-io -f raw "${arguments[@]}" "$uri" >"$dir/qemu-io.log" ||
    { cat "$dir/qemu-io.log"; fail "qemu-io failed"; }
  # Some versions report a failed pattern only as text.
  if grep -i 'fail\|error' "$dir/qemu-io.log"; then fail "qemu-io found a wrong pattern"; fi
  if qemu-io -f raw -c "read ${mib}M 512" "$uri" >/dev/null 2>&1; then
    fail "a read behind the end was answered"
  fi
}

# verify NAME OPTION...: one fio run that checks what it wrote.
verify() {
  local name=$1
  shift
  fio --name="$name" --ioengine=nbd --uri="$uri" --verify=crc32c --verify_fatal=1 \
    --verify_state_save=0 --iodepth=16 --randrepeat=0 --size="$((mib >> 2))M" \
    --output="$dir/fio.log" "$@" ||
    { cat "$dir/fio.log"; fail "fio $name failed"; }
}

loads() {
  say "fio: random, mixed sizes, overlapping, trimmed, and several jobs at once, all verified"
  verify random --rw=randwrite --bs=4k --io_size="$((mib >> 2))M"
  verify sizes --rw=randrw --bsrange=512-128k --bs_unaligned=0 --blockalign=512 \
    --verify_backlog=64
  verify overlapping --rw=randwrite --bsrange=4k-64k --blockalign=4k --norandommap \
    --serialize_overlap=1 --io_size="$((mib >> 1))M"
  # A trim and the next write may overtake each other, so only one may be in flight.
  verify trimmed --rw=trimwrite --bs=16k --iodepth=1
  verify jobs --rw=randwrite --bs=8k --numjobs=4 --offset_increment="$((mib >> 2))M" \
    --group_reporting
  verify flushed --rw=randwrite --bs=4k --fsync=32 --io_size="$((mib >> 4))M"
}

say "mode $mode, $io, a disk of $mib MiB, 32 MiB of memory"
truncate -s "${mib}M" "$disk"
start
sizes
copies
images
patterns
loads
say "stopping: comparing the file behind the volume"
nbdcopy "$uri" "$dir/last.img"
stop
cmp "$dir/last.img" "$disk"
say "restarting: comparing again"
start
same "$dir/last.img"
stop
say "all clients passed"
