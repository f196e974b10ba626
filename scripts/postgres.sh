#!/usr/bin/env bash
# PostgreSQL on ext4 on a volume over a modelled hard disk, through nbdfuse and a loop device.
#
# First its speed: pgbench without the cache (bypass), in write-through, and in write-back with a
# journal on a modelled SSD, with one client and with eight, three interleaved runs of each,
# medians. Fails if a ratio to the runs without the cache misses its limit.
#
# Then its durability: in write-back with that journal it is killed in mid-run, alternately the
# Forebay server, PostgreSQL, and both at once. Hard disk and journal are on the layer `volatile`,
# so a kill of the server loses all their unflushed data, except for a share of its sectors. After
# each kill, ext4's journal is replayed, and fsck must find no errors; PostgreSQL must recover;
# pg_amcheck must find no errors in any table and index; every transaction whose commit pgbench has
# seen must be present, and at most one more per client; and the sums of the benchmark's tables
# must agree.
#
#   scripts/postgres.sh [ROUNDS] [SECONDS]
#
# The default is ten rounds, and runs of 8 seconds; 0 skips either. Needs root (it mounts) and
# /dev/fuse. FOREBAY selects another program than the release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

rounds=${1:-10}
run_seconds=${2:-8}
scale=10
clients=8
forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
memory=256MiB
# Checkpointed often.
settings='shared_buffers = 64MB
max_wal_size = 64MB
min_wal_size = 32MB
checkpoint_timeout = 30s'
# shellcheck source=scripts/database.sh
. scripts/database.sh

# median: of three lines.
median() { sort -g | sed -n 2p; }

# speed_of NAME SETTINGS: one run with one client and one with all, their transactions per second
# into files.
speed_of() {
  local count
  serve "$hdd,$2"
  attach
  mount "$loop" "$dir/mnt"
  start_postgres
  # The tables fit the machine's memory in every mode: commits and checkpoints are compared, not
  # cold reads.
  cat "$dir"/mnt/data/base/*/* >/dev/null
  for count in 1 "$clients"; do
    pgbench -h "$dir/run" -U postgres -n -c "$count" -j 2 -T "$run_seconds" bench \
      >"$dir/speed" 2>&1 || { cat "$dir/speed"; fail "pgbench failed"; }
    sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$dir/speed" >>"$dir/tps.$1.$count"
    say "$1: $(tail -1 "$dir/tps.$1.$count") transactions/s of $count clients"
  done
  stop_postgres
  detach
  stop_server
}

speed() {
  local hdd run name count first missed=0
  # Transactions per second, relative to the interleaved runs without the cache.
  local -A speed_min=([write-through]=0.9 [write-back]=1.3)
  hdd="v=model:hdd?backing=$dir/speed.disk"
  local write_back="mode=write-back,protection=journal"
  write_back+=",journal=model:ssd?backing=$dir/speed.journal"
  truncate -s 2G "$dir/speed.disk"
  truncate -s 256M "$dir/speed.journal"
  make_database "$hdd,$write_back"
  stop_postgres
  detach
  stop_server
  for run in 1 2 3; do
    say "speed, run $run of 3: $run_seconds s each"
    speed_of bypass mode=bypass
    speed_of write-through mode=write-through
    speed_of write-back "$write_back"
  done
  printf '%-14s %8s %10s %8s  %s\n' mode clients median/s ratio limit
  for count in 1 "$clients"; do
    first=$(median <"$dir/tps.bypass.$count")
    for name in bypass write-through write-back; do
      median <"$dir/tps.$name.$count" | awk -v name="$name" -v count="$count" -v first="$first" \
        -v limit="${speed_min[$name]:-0}" '{
          ratio = $1 / first
          word = limit == 0 ? "information" : ">= " limit (ratio >= limit ? " met" : " MISSED")
          printf "%-14s %8d %10.1f %8.2f  %s\n", name, count, $1, ratio, word
          exit ratio < limit
        }' || missed=$((missed + 1))
    done
  done
  rm -f "$dir/speed.disk" "$dir/speed.journal"
  ((missed == 0)) || fail "$missed limits of the speed were missed"
}

# The transaction of pgbench, plus a line in a ledger that identifies it.
write_script() {
  cat >"$dir/script" <<'SCRIPT'
\set n :n + 1
\set aid random(1, 100000 * :scale)
\set bid random(1, 1 * :scale)
\set tid random(1, 10 * :scale)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
  VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
INSERT INTO ledger VALUES (:round, :client_id, :n);
END;
SCRIPT
}

# load_and_kill ROUND KIND: pgbench logs a line for each transaction whose commit it has seen.
load_and_kill() {
  local bench
  (cd "$dir" && exec pgbench -h "$dir/run" -U postgres -n -c "$clients" -j 2 -T 600 -D n=0 \
    -D "round=$1" -D "scale=$scale" -f script -l --log-prefix="seen.$1" bench) \
    >"$dir/bench.log" 2>&1 &
  bench=$!
  sleep "$((4 + RANDOM % 6)).$((RANDOM % 10))"
  kill -0 "$bench" 2>/dev/null || { cat "$dir/bench.log"; gave_up "pgbench has ended by itself"; }
  case $2 in
    server)
      kill -9 "$server"
      wait "$server" 2>/dev/null || true
      sleep 1
      kill_postgres
      ;;
    postgres) kill_postgres ;;
    everything) kill_postgres "$server" ;;
  esac
  wait "$bench" && fail "pgbench succeeded although its server was killed"
  cat "$dir/seen.$1".* | awk '{ count[$1]++ } END { for (c in count) print c, count[c] }' \
    >"$dir/committed.$1"
}

# recover KIND: restarts the killed processes.
recover() {
  if [[ $1 != postgres ]]; then
    detach
    serve "$lossy"
    attach
    e2fsck -y -E journal_only "$loop" >"$dir/replay.log" 2>&1 || (($? <= 1)) ||
      { cat "$dir/replay.log"; fail "ext4's journal can not be replayed"; }
    e2fsck -fn "$loop" >"$dir/check.log" 2>&1 || { cat "$dir/check.log"; fail "fsck complains"; }
    mount "$loop" "$dir/mnt"
  fi
  # Left by the killed process.
  rm -f "$dir/mnt/data/postmaster.pid"
  start_postgres
}

# check_round ROUND: checks that all its data is present, and nothing else.
check_round() {
  local client count lost
  pg_amcheck -h "$dir/run" -U postgres --all --install-missing --heapallindexed \
    >"$dir/amcheck.log" 2>&1 || { cat "$dir/amcheck.log"; fail "pg_amcheck complains"; }
  while read -r client count; do
    lost=$(query "select count(*) from generate_series(1, $count) n where not exists
      (select from ledger l where l.round = $1 and l.client = $client and l.n = n.n)")
    [[ $lost == 0 ]] || fail "round $1: $lost of $count commits of client $client are lost"
    [[ $(query "select count(*) <= $count + 1 from ledger
      where round = $1 and client = $client") == t ]] ||
      fail "round $1: client $client has more than it wrote"
  done <"$dir/committed.$1"
  [[ $(query "select (select sum(abalance) from pgbench_accounts) = all (array[
      (select sum(tbalance) from pgbench_tellers), (select sum(bbalance) from pgbench_branches),
      (select coalesce(sum(delta), 0) from pgbench_history)])") == t ]] ||
    fail "round $1: the tables contradict each other"
}

crashes() {
  local round kind kinds=(server postgres everything) total=0 seen begin lossy
  local keep='volatile(keep=0.4)'
  lossy="v=model:hdd?backing=$keep:$dir/disk,mode=write-back,protection=journal"
  lossy+=",journal=model:ssd?backing=$keep:$dir/journal"
  truncate -s 2G "$dir/disk"
  truncate -s 256M "$dir/journal"
  write_script
  make_database "$lossy"
  query 'create extension amcheck; create table ledger (round int, client int, n int,
    primary key (round, client, n))'
  for ((round = 1; round <= rounds; round++)); do
    kind=${kinds[(round - 1) % 3]}
    load_and_kill "$round" "$kind"
    begin=$SECONDS
    recover "$kind"
    seen=$(awk '{ sum += $2 } END { print sum + 0 }' "$dir/committed.$round")
    total=$((total + seen))
    say "round $round of $rounds: killed $kind after $seen commits; up after" \
      "$((SECONDS - begin)) s"
    check_round "$round"
  done
  stop_postgres
  detach
  stop_server
  say "$rounds kills, $total commits seen: none is lost, no errors from amcheck and fsck"
}

((run_seconds == 0)) || speed
((rounds == 0)) || crashes
