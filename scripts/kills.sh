#!/usr/bin/env bash
# Kills the server under fio repeatedly, and after each kill lets fio verify the acknowledged data:
# random writes of 4 KiB on real files, each block with its checksum, position and number. fio's
# latency log lists the acknowledged writes; writes in flight when the server died may be lost.
#
#   scripts/kills.sh journal|keeper [KILLS]
#
# With `journal`, memory dies with the server, and the journal has everything; with `keeper`, the
# pool survives, and there is no other protection. The default is 30 kills, of about five seconds
# each. The files are in FOLDER (default: the build directory). FOREBAY selects another program
# than the release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

way=${1:?usage: kills.sh journal|keeper [KILLS]}
kills=${2:-30}
forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need fio=fio nbdinfo=libnbd-bin jq=jq

dir=$(mktemp -d -p "${FOLDER:-$(target_dir)}")
uri="nbd+unix:///v?socket=$dir/nbd.sock"
options="mode=write-back"
case $way in
  journal) keeper=no options+=",protection=journal,journal=$dir/journal" ;;
  keeper) keeper=yes options+=",protection=none,accept-loss=yes" ;;
  *) fail "no way '$way': journal or keeper" ;;
esac
# Process id of the keeper, or of the server if there is none.
process=
writer=
clean() {
  [[ -z $process ]] || kill "$process" 2>/dev/null || true
  [[ -z $process ]] || wait "$process" 2>/dev/null || true
  [[ -z $writer ]] || wait "$writer" 2>/dev/null || true
  rm -rf "$dir"
}
trap clean EXIT

gave_up() {
  grep -A 2 panicked "$dir/log" || true
  tail -n 20 "$dir/log"; head -n 15 "$dir/fio.log" 2>/dev/null || true
  fail "$*"
}

start() {
  "$forebay" serve --volume "v=$dir/disk.img,$options" --nbd "unix:$dir/nbd.sock" \
    --memory 96MiB --keeper "$keeper" --state "$dir/state" >>"$dir/log" 2>&1 &
  process=$!
}

# writes: the number of writes that the server has completed.
writes() { "$forebay" status --json --state "$dir/state" | jq '.volumes[0].counters.writes'; }

# wait_for_answer: waits until the socket answers.
wait_for_answer() {
  local i
  for ((i = 0; i < 3000; i++)); do
    if nbdinfo --size "$uri" >/dev/null 2>&1; then return; fi
    kill -0 "$process" 2>/dev/null || gave_up "the server did not start"
    sleep 0.01
  done
  gave_up "the server does not answer"
}

# load ROUND OPTION...: the same writes in the same order for the same round.
load() {
  local round=$1
  shift
  # Limit the log: fio may repeat its messages about a dead server endlessly.
  (cd "$dir" && ulimit -f 262144 && timeout 120 fio --name=load --ioengine=nbd --uri="$uri" \
    --rw=randwrite --bs=4k --iodepth=16 --size=256M --randseed="$round" --verify=crc32c "$@" \
    >fio.log 2>&1)
}

# verify ROUND: checks that each block acknowledged in this round is present. fio reads all blocks,
# and names the wrong ones, including those that it had not reached.
verify() {
  load "$1" --verify_only --continue_on_error=verify || true
  awk -F ', *' '$3 == 1 { print $5 }' "$dir"/acknowledged_lat.*.log | sort -u >"$dir/acknowledged"
  sed -n -e 's/^verify: .* offset \([0-9]*\), length.*/\1/p' \
    -e 's/^crc32c: .* offset \([0-9]*\), .*/\1/p' "$dir/fio.log" | sort -u >"$dir/wrong"
  [[ -s $dir/acknowledged ]] || gave_up "round $1: fio has written no latency log"
  verified=$(sed -n 's/.*issued rwts: total=\([0-9]*\),.*/\1/p' "$dir/fio.log" | head -1)
  ((${verified:-0} == 65536)) || gave_up "round $1: fio has verified ${verified:-0} blocks only"
  if comm -12 "$dir/acknowledged" "$dir/wrong" | grep .; then
    gave_up "round $1: these offsets were acknowledged, and are wrong"
  fi
  blocks=$((blocks + $(wc -l <"$dir/acknowledged")))
}

truncate -s 256M "$dir/disk.img"
truncate -s 96M "$dir/journal"
start
wait_for_answer
blocks=0
longest=0
endless=0
for ((round = 1; round <= kills; round++)); do
  server=$(jq .pid <("$forebay" status --json --state "$dir/state"))
  before=$(writes)
  load "$round" --do_verify=0 --rate_iops=20000 --write_lat_log=acknowledged --log_offset=1 &
  writer=$!
  # fio starts late on a busy machine.
  while [[ $(writes) == "$before" ]]; do
    kill -0 "$writer" 2>/dev/null || gave_up "round $round: fio has ended without a write"
    sleep 0.05
  done
  # A random moment: 0.7 to 1.7 s. The keeper gives up on servers that die sooner.
  sleep "$(awk -v r=$RANDOM 'BEGIN { print 0.7 + r / 32768 }')"
  begin=$(date +%s%3N)
  kill -9 "$server"
  if [[ $way == journal ]]; then
    wait "$process" 2>/dev/null || true
    start
  fi
  wait_for_answer
  outage=$(($(date +%s%3N) - begin))
  ((outage <= longest)) || longest=$outage
  # It fails, unless it had finished before the kill.
  status=0
  wait "$writer" || status=$?
  writer=
  # Ended by the limit of its log (SIGXFSZ), it has not said what was acknowledged.
  if ((status == 153)); then
    endless=$((endless + 1))
    ((endless <= kills)) || gave_up "fio does not end when its server dies"
    round=$((round - 1))
    continue
  fi
  verify "$round"
done
kill -TERM "$process"
wait "$process" || gave_up "the server did not stop cleanly"
process=
say "$way: $kills kills, $blocks acknowledged blocks verified; longest outage $longest ms"
