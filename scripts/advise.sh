#!/usr/bin/env bash
# The advice against reality: loads of fio on a loop device, observed by `forebay advise`, and the
# same loads through a server with the advised memory. The predicted share of reads from memory
# must be within 5 points of the one then measured.
#
#   scripts/advise.sh [LOAD...]
#
# The loop device lies on a disk that takes 0.4 ms for each request: a layer of a server, through
# nbdfuse. Each load is run three times with the same places: observed on the loop device; through
# the server, from an empty pool, with the same requests (fio's seed and file name are the same);
# and once more with another seed and a warm pool. The first prediction is compared with the second
# run; the range for a warm cache with the third. A read of data that is on its way to memory
# already, because it was read ahead, counts as served, in a column of its own: whether it has
# arrived depends on the speed of the client, which the cache changes.
#
# Needs root and /dev/fuse. Takes about ten minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need nbdfuse=libnbd-bin fusermount3=fuse3 fio=fio jq=jq
[[ -d /sys/kernel/tracing/events/block ]] ||
  fail "no events of block devices: run mount -t tracefs tracefs /sys/kernel/tracing"

# The loads: the memory that the cache may have (auto: as advised), and fio's options for each job,
# jobs separated by a bar.
declare -A memories=() jobs=()
load() { memories[$1]=$2 jobs[$1]=$3 order+=("$1"); }
order=()
small="--bs=4k --norandommap"
load zipf auto "$small --rw=randread --random_distribution=zipf:1.2 --size=128M --io_size=240M"
load uniform 32MiB "$small --rw=randread --size=64M --io_size=320M"
load hot-cold auto "$small --rw=randread --random_distribution=zoned:90/10:10/90 --size=96M
  --io_size=240M"
load loop 32MiB "--bs=4k --rw=randread --size=48M --loops=5"
load scan auto "--bs=16k --rw=read --size=256M"
load mixed auto "$small --rw=randrw --rwmixread=70 --random_distribution=zipf:1.1 --size=96M
  --io_size=240M"
load sizes 48MiB "--bssplit=4k/50:16k/40:64k/10 --norandommap --rw=randread
  --random_distribution=zipf:0.9 --size=128M --io_size=640M"
load database auto "$small --rw=randread --random_distribution=zipf:1.1 --size=16M --io_size=120M |
  --bs=8k --norandommap --rw=randrw --rwmixread=80 --offset=32M --size=128M --io_size=160M |
  --bs=4k --rw=write --fsync=1 --offset=192M --size=24M"
load log auto "--bs=4k --rw=write --size=64M"

chosen=("${@:-${order[@]}}")
for name in "${chosen[@]}"; do
  [[ -n ${jobs[$name]:-} ]] || fail "no load '$name': write ${order[*]}"
done

dir=$(mktemp -d)
servers=()
loop=
clean() {
  if [[ -n $loop ]]; then losetup -d "$loop" || true; fi
  if mountpoint -q "$dir/fuse"; then fusermount3 -u "$dir/fuse" || true; fi
  for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
  wait
  rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir "$dir/fuse"
truncate -s 256M "$dir/disk.img" "$dir/cached.img"

# serve NAME VOLUME MEMORY: starts a server with its socket at $dir/NAME.sock.
serve() {
  "$forebay" serve --volume "$2" --memory "$3" --keeper no --state "$dir/$1" \
    --nbd "unix:$dir/$1.sock" >"$dir/$1.log" 2>&1 &
  servers+=($!)
  wait_for_socket "$dir/$1.sock" $! || { cat "$dir/$1.log"; fail "the server did not start"; }
}

# run SEED JOBS OPTION...: runs the jobs of a load at once, with options for all of them.
run() {
  local seed=$1 job jobs pids=() at=0
  IFS='|' read -r -d '' -a jobs <<<"$2" || true
  shift 2
  for job in "${jobs[@]}"; do
    at=$((at + 1))
    # shellcheck disable=SC2086 # the options of a job are words
    fio --name=load --filename="$loop" --randseed=$((seed + at)) --allrandrepeat=1 "$@" $job \
      --output="$dir/fio.$at" >&2 &
    pids+=($!)
  done
  for job in "${pids[@]}"; do wait "$job" || { cat "$dir"/fio.*; fail "fio failed"; }; done
}

# reads: reads of the volume so far, hits, and reads of data that was on its way to memory.
reads() {
  "$forebay" stats disk --json --state "$dir/cache" |
    jq -r '.total.counters | "\(.reads) \(.read_hits) \(.uncached_reads["io-in-flight"] // 0)"'
}

serve slow "disk=delay(read=400us,write=400us):$dir/disk.img,mode=bypass,prefetch=no" 64MiB
nbdfuse "$dir/fuse/disk" "nbd+unix:///disk?socket=$dir/slow.sock" &
tries=0
until [[ -e $dir/fuse/disk ]]; do
  tries=$((tries + 1))
  ((tries < 100)) || fail "nbdfuse did not mount"
  sleep 0.1
done
loop=$(losetup -f --show --direct-io=on "$dir/fuse/disk")

failed=0
row='%-9s %-32s %6s | %5s %5s %5s | %5s %5s %5s %5s\n'
# shellcheck disable=SC2059 # the format is above
{
  printf "$row" '' '' '' from empty '' warm '' '' ''
  printf "$row" LOAD ADVICE MEMORY pred. hits coming least most hits coming
} >"$dir/table"
for name in "${chosen[@]}"; do
  say "$name: observing"
  options=(--json --time 1h)
  [[ ${memories[$name]} == auto ]] || options+=(--memory "${memories[$name]}")
  "$forebay" advise "$loop" "${options[@]}" >"$dir/advice.json" &
  advisor=$!
  servers+=("$advisor")
  # Until it has installed its trace.
  until compgen -G "/sys/kernel/tracing/instances/forebay-advise-$advisor/trace_pipe" \
    >/dev/null; do
    kill -0 "$advisor" || fail "forebay advise ended"
    sleep 0.05
  done
  sleep 0.5
  run 7 "${jobs[$name]}" --ioengine=psync --direct=1
  kill -INT "$advisor"
  wait "$advisor"
  advice() { jq -r "$1" "$dir/advice.json"; }
  verdict="$(advice '.devices[0] | "\(.advice) \(.mode // "") \(.reason)"')"
  # Without reads, there is nothing to compare.
  if [[ $(advice '.devices[0].prediction.reads') == 0 ]]; then
    # shellcheck disable=SC2059 # the format is above
    printf "$row" "$name" "$verdict" '' - - - - - - - >>"$dir/table"
    continue
  fi
  memory=$(advice '.devices[0].expected.memory_setting_bytes')
  mode=$(advice '.devices[0].mode // "write-through"')
  [[ $mode != write-back ]] || mode+=,protection=none,accept-loss=yes
  say "$name: through a server with --memory $((memory >> 20))MiB, $mode"
  serve cache "disk=$dir/cached.img,mode=$mode" "$memory"
  uri="nbd+unix:///disk?socket=$dir/cache.sock"
  run 7 "${jobs[$name]}" --ioengine=nbd --uri="$uri"
  read -r all hits coming < <(reads)
  run 1007 "${jobs[$name]}" --ioengine=nbd --uri="$uri"
  read -r all_later hits_later coming_later < <(reads)
  "$forebay" stop --state "$dir/cache" >/dev/null
  # It has the totals of this volume, to which the next load would be added.
  rm -rf "$dir/cache"
  line=$(advice '.devices[0].expected.point | [.read_hit_ratio_from_empty, .read_hit_ratio_min,
    .read_hit_ratio_max] | map(. * 100) | join(" ")')
  read -r empty least most <<<"$line"
  result=$(awk -v empty="$empty" -v least="$least" -v most="$most" -v all="$all" -v hits="$hits" \
    -v coming="$coming" -v later="$((all_later - all))" -v hits_later="$((hits_later - hits))" \
    -v coming_later="$((coming_later - coming))" 'BEGIN {
      measured = 100 * hits / all
      on_way = 100 * coming / all
      warm = 100 * hits_later / later
      warm_on_way = 100 * coming_later / later
      off = measured + on_way - empty
      below = least - warm - warm_on_way
      above = warm + warm_on_way - most
      good = off < 5 && off > -5 && below < 5 && above < 5
      printf "%.1f %.1f %.1f %.1f %.1f %.1f %.1f %d\n", empty, measured, on_way, least, most,
        warm, warm_on_way, good
    }')
  read -r -a figures <<<"$result"
  size="$(($(advice '.devices[0].expected.point.bytes') >> 20))M"
  # shellcheck disable=SC2059 # the format is above
  printf "$row" "$name" "$verdict" "$size" "${figures[@]:0:7}" | tee -a "$dir/table"
  if ((figures[7] == 0)); then failed=$((failed + 1)); fi
done

say "reads served from memory, in percent: predicted and measured"
cat "$dir/table"
((failed == 0)) || fail "$failed predictions are off by 5 points or more"
