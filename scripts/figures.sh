#!/usr/bin/env bash
# Compares the statistics of one load with the figures of its client and of its disk: fio sends
# random reads and writes of several sizes, and the disk is an nbdkit that counts and delays them.
#
#   scripts/figures.sh MODE IO
#
# MODE is write-through, write-back or bypass; IO is io_uring or epoll. Fails unless requests and
# bytes are equal, on both sides, and mean latencies agree to 1 %. FOREBAY selects another program
# than the release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

mode=${1:?usage: figures.sh MODE IO}
io=${2:?usage: figures.sh MODE IO}
forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need fio=fio nbdkit=nbdkit jq=jq

dir=$(mktemp -d)
options="mode=$mode"
if [[ $mode == write-back ]]; then options+=",protection=none,accept-loss=yes"; fi
disk=
server=
trap 'kill $server $disk 2>/dev/null || true; rm -rf "$dir"' EXIT

# Times that are long beside those of two processes on a busy machine.
nbdkit -f -t 256 -U "$dir/disk.sock" --filter=stats --filter=delay memory 256M \
  statsfile="$dir/disk" delay-read=200ms delay-write=300ms &
disk=$!
wait_for_socket "$dir/disk.sock" "$disk" || fail "nbdkit did not start"
"$forebay" serve --volume "v=nbd+unix:///?socket=$dir/disk.sock,$options" \
  --nbd "unix:$dir/nbd.sock" --memory 128MiB --io "$io" --keeper no --state "$dir/state" \
  >"$dir/log" 2>&1 &
server=$!
wait_for_socket "$dir/nbd.sock" "$server" || { cat "$dir/log"; fail "the server did not start"; }

say "$mode, $io: fio"
fio --name=load --ioengine=nbd --uri="nbd+unix:///v?socket=$dir/nbd.sock" --rw=randrw \
  --rwmixread=70 --bssplit=4k/50:16k/25:64k/25 --size=192M --norandommap --iodepth=8 \
  --number_ios=1000 --randseed=7 --end_fsync=1 --output-format=json \
  --output="$dir/fio.json"
"$forebay" stats v --json --state "$dir/state" >"$dir/ours.json"
kill -TERM "$server"
wait "$server" || { cat "$dir/log"; fail "the server did not stop cleanly"; }
server=
kill -TERM "$disk"
wait "$disk" || true
disk=

of_fio() { jq -r ".jobs[0].$1" "$dir/fio.json"; }
ours() { jq -r ".total | $1" "$dir/ours.json"; }
# of_disk KIND: its operations and the seconds of all.
of_disk() {
  sed -n "s/^$1: \([0-9]*\) ops, \([0-9.]*\) s.*/\1 \2/p" "$dir/disk" | grep . || echo 0 0
}
# The mean of several kinds, in us, and in the field FIELD of the statistics.
mean() {
  ours "[.latency | $1] | (map(.count * .mean_us) | add) / ([1, (map(.count) | add)] | max)"
}

bad=0
# equal NAME OURS THEIRS
equal() {
  local word=equal
  if [[ $2 != "$3" ]]; then word=DIFFERENT bad=$((bad + 1)); fi
  printf '%-28s %14s %14s  %s\n' "$1" "$2" "$3" "$word"
}
# close NAME OURS THEIRS: to 1 %.
close() {
  awk -v name="$1" -v ours="$2" -v theirs="$3" 'BEGIN {
    off = theirs > 0 ? 100 * (ours / theirs - 1) : 100
    good = off > -1 && off < 1
    printf "%-28s %14.1f %14.1f  %+.2f %%, %s\n", name, ours, theirs, off, good ? "met" : "MISSED"
    exit !good
  }' || bad=$((bad + 1))
}

read -r disk_reads disk_read_seconds < <(of_disk read)
read -r disk_writes disk_write_seconds < <(of_disk write)
printf '%-28s %14s %14s\n' '' statistics others
equal "reads, fio" "$(ours .counters.reads)" "$(of_fio read.total_ios)"
equal "writes, fio" "$(ours .counters.writes)" "$(of_fio write.total_ios)"
equal "bytes read, fio" "$(ours .counters.read_bytes)" "$(of_fio read.io_bytes)"
equal "bytes written, fio" "$(ours .counters.write_bytes)" "$(of_fio write.io_bytes)"
equal "hits, partial hits, misses" \
  "$(ours '.counters | .read_hits + .read_partial_hits + .read_misses')" "$(of_fio read.total_ios)"
equal "reads of the disk" \
  "$(ours '.counters | .backend_reads + (.backend_causes.internal.reads // 0)')" "$disk_reads"
equal "writes of the disk" "$(ours .counters.backend_writes)" "$disk_writes"
close "mean read, us, fio" "$(mean '.read_hit, .read_miss')" \
  "$(of_fio read.clat_ns.mean | awk '{ print $1 / 1e3 }')"
# Writes into memory take as long as their way through two processes.
if [[ $mode != write-back ]]; then
  close "mean write, us, fio" "$(mean .write)" \
    "$(of_fio write.clat_ns.mean | awk '{ print $1 / 1e3 }')"
fi
close "mean read of the disk, us" "$(mean .disk_read)" \
  "$(awk -v n="$disk_reads" -v s="$disk_read_seconds" 'BEGIN { print n ? 1e6 * s / n : 0 }')"
close "mean write of the disk, us" "$(mean .disk_write)" \
  "$(awk -v n="$disk_writes" -v s="$disk_write_seconds" 'BEGIN { print n ? 1e6 * s / n : 0 }')"
((bad == 0)) || fail "$bad figures disagree"
