#!/usr/bin/env bash
# Has each kind of thread of a server panic once, wherever it is at that moment: a debugger makes it
# continue in a function that panics. Each time, the process must end, its keeper must start the
# next server on the same pool, and everything acknowledged must be there: data that only the pool
# has, data under a UPS, and data in a journal.
#
#   scripts/panics.sh [THREAD...]
#
# The default is every thread that the server has, except for the control port's, whose panics fail
# one request. FOREBAY selects another program than the debug build: it needs debug assertions. The
# debugger's commands are for x86_64.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

forebay=${FOREBAY:-$(target_dir)/debug/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build -p forebay first"
need gdb=gdb nm=binutils fio=fio jq=jq

# The function, as an offset in the program.
offset=$(nm -C "$forebay" | awk '/forebay::serve::planted::panic_here$/ { print $1 }')
[[ -n $offset ]] || fail "$forebay cannot panic: it was built without debug assertions"

dir=$(mktemp -d)
# Panics abort, and their dumps would stay.
ulimit -c 0
keeper=
clean() {
  if [[ -n $keeper ]]; then
    # shellcheck disable=SC2046
    kill -9 "$keeper" $(pgrep -P "$keeper") 2>/dev/null || true
    wait "$keeper" 2>/dev/null || true
  fi
  rm -rf "$dir"
}
trap clean EXIT

gave_up() {
  tail -n 30 "$dir/log" "$dir/gdb.log" "$dir/fio.log" 2>/dev/null || true
  fail "$*"
}

status() { timeout 10 "$forebay" status --json --state "$dir/state" 2>/dev/null; }
server() { status | jq .pid; }

# blocks VOLUME ROUND OPTION...: the blocks that are written in a round; fio checks their content.
# It sends no flush, which the disks would never answer.
blocks() {
  local volume=$1 round=$2
  shift 2
  (cd "$dir" && timeout 60 fio --name="$volume" --ioengine=nbd \
    --uri="nbd+unix:///$volume?socket=$dir/nbd.sock" --rw=write --bs=4k --iodepth=4 --size=64k \
    --offset="${round}M" --randseed="$round" --verify=crc32c "$@" >fio.log 2>&1)
}

# threads PID: the threads of a process, each with its id and kind.
threads() {
  local task kind
  for task in "/proc/$1"/task/*; do
    kind=$(sed -e 's/-[0-9]*$//' "$task/comm" 2>/dev/null) || continue
    [[ ${task##*/} != "$1" ]] || kind=main
    case $kind in control | planted | iou-*) ;; *) printf '%s %s\n' "${task##*/}" "$kind" ;; esac
  done
}

# Writes to these disks never complete.
disk() {
  truncate -s 64M "$dir/$1.img"
  printf '%s=delay(write=forever):%s,mode=write-back' "$1" "$dir/$1.img"
}
truncate -s 64M "$dir/journal" "$dir/vault"
printf 'ups.status: OL\nbattery.charge: 100\nbattery.runtime: 3600\n' >"$dir/readings"
"$forebay" serve --volume "$(disk pool),protection=none,accept-loss=yes" \
  --volume "$(disk journaled),protection=journal,journal=$dir/journal" \
  --volume "$(disk powered),protection=ups" \
  --ups "mains=command:/bin/cat $dir/readings" --ups-settle-seconds 1 --vault "$dir/vault" \
  --nbd "unix:$dir/nbd.sock" --memory 96MiB --state "$dir/state" >"$dir/log" 2>&1 &
keeper=$!
wait_for_socket "$dir/state/control.sock" "$keeper" || gave_up "the server did not start"

# wait_for_server PID: until another server than this one serves, and the UPS lets it acknowledge
# writes from memory.
wait_for_server() {
  local end=$((SECONDS + 90))
  while ((SECONDS < end)); do
    if status | jq -e --argjson old "$1" '.pid != $old and
      (.volumes | length == 3 and all(.effective_mode == "write-back"))' >/dev/null; then return; fi
    kill -0 "$keeper" 2>/dev/null || gave_up "the keeper has ended"
    sleep 0.1
  done
  gave_up "no server serves"
}

# panic KIND: a thread of this kind of the server panics, if there is one now. The backtrace ends at
# a return address of zero.
panic() {
  local pid task base
  pid=$(server)
  base=$(awk -F- 'NR == 1 { print $1 }' "/proc/$pid/maps")
  task=$(threads "$pid" | awk -v kind="$1" '$2 == kind { print $1; exit }')
  [[ -n $task ]] || return 1
  # shellcheck disable=SC2016  # gdb's registers
  gdb -p "$pid" -batch -ex "set confirm off" -ex "set language c" \
    -ex "handle SIGABRT nostop noprint pass" \
    -ex "python [t.switch() for t in gdb.selected_inferior().threads() if t.ptid[1] == $task]" \
    -ex 'set $rsp = (((unsigned long)$rsp - 512) & ~15ul) - 8' -ex 'set {long}$rsp = 0' \
    -ex "jump *(0x$base + 0x$offset)" >"$dir/gdb.log" 2>&1 || true
  wait_for_server "$pid"
}

wait_for_server 0
kinds=("$@")
if ((${#kinds[@]} == 0)); then
  mapfile -t kinds < <(threads "$(server)" | awk '{ print $2 }' | sort -u)
fi
round=0
count=0
volumes=(pool journaled powered)
for kind in "${kinds[@]}"; do
  round=$((round + 1))
  for volume in "${volumes[@]}"; do
    blocks "$volume" "$round" --do_verify=0 || gave_up "$kind: a write to $volume fails"
  done
  before=$(grep -c "exit=Signal(6)" "$dir/log" || true)
  if ! panic "$kind"; then
    say "$kind: has ended"
    continue
  fi
  count=$((count + 1))
  # The thread of the log can not write that it panics.
  [[ $kind == log ]] ||
    grep -q "thread '$kind\(-[0-9]*\)\?' panicked" "$dir/log" ||
    gave_up "$kind has not panicked"
  (($(grep -c "exit=Signal(6)" "$dir/log") == before + 1)) || gave_up "$kind: not one abort"
  for volume in "${volumes[@]}"; do
    blocks "$volume" "$round" --verify_only || gave_up "$kind: $volume has lost a write"
  done
  say "$kind: the next server has everything"
done
for volume in "${volumes[@]}"; do
  for ((past = 1; past <= round; past++)); do
    blocks "$volume" "$past" --verify_only || gave_up "at the end, $volume has lost a write"
  done
done
say "$count kinds of threads have panicked, and nothing is lost"
