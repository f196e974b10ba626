#!/usr/bin/env bash
# More and more users of PostgreSQL on a modelled hard disk: pgbench without the cache (bypass) and
# in write-back with a journal on a modelled SSD, in turn, with the numbers of clients below.
# Prints transactions per second, their 95th percentile, and what the disk and the processors did.
# Fails if the cache's rate relative to bypass misses its limit at a number of clients.
#
#   scripts/oltp.sh [SECONDS]
#
# A run takes 30 seconds by default. The tables do not fit the memory that PostgreSQL and its page
# cache may use, so they are read from the disk; in bypass the server forwards each request to it.
# Needs root (it mounts, and limits memory by a control group) and /dev/fuse. FOREBAY selects
# another program than the release build; OLTP_CLIENTS are the numbers of clients.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

run_seconds=${1:-30}
read -ra client_counts <<<"${OLTP_CLIENTS:-1 2 4 8 16 32}"
# About 750 MB of tables and indices.
scale=50
# Of PostgreSQL and its page cache.
memory_limit=$((320 << 20))
# Limits of the rate relative to bypass.
rate_min=1.5
forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
memory=1GiB
settings='shared_buffers = 64MB
max_connections = 100
checkpoint_timeout = 30s'
# shellcheck source=scripts/database.sh
. scripts/database.sh
# Direct I/O: the page cache of the loop device's file is outside the control group's limit.
loop_options=(--direct-io=on --sector-size 4096)

group=
leave_group() {
  [[ -z $group ]] || rmdir "$group" 2>/dev/null || true
}
trap 'clean; leave_group' EXIT

# make_group: a control group with a limit of memory, of either version.
make_group() {
  local root=/sys/fs/cgroup limit
  if [[ -w $root/memory/memory.limit_in_bytes ]]; then
    group=$root/memory/forebay-oltp.$$
    limit=memory.limit_in_bytes
  elif grep -qw memory "$root/cgroup.subtree_control" 2>/dev/null; then
    group=$root/forebay-oltp.$$
    limit=memory.max
  else
    echo "no control group limits memory here: nothing is measured"
    exit 0
  fi
  mkdir "$group" || fail "no control group can be made in $root"
  echo "$memory_limit" >"$group/$limit"
}

# start_limited: PostgreSQL in the control group, with nothing in its page cache.
start_limited() {
  echo 1 >/proc/sys/vm/drop_caches
  echo $BASHPID >"$group/cgroup.procs"
  start_postgres
  echo $BASHPID >"$(dirname "$group")/cgroup.procs"
}

# disk_figures: I/Os, seconds busy, seconds that I/Os waited, from the start of the server.
disk_figures() {
  "$forebay" stats v --json --state "$state" | tr -d ' \n' | sed 's/"last_5_minutes".*//' |
    awk '{
      n = split("backend_reads backend_writes busy_seconds wait_seconds", names, " ")
      for (i = 1; i <= n; i++) {
        match($0, "\"" names[i] "\":[0-9.e-]+")
        value[i] = substr($0, RSTART + length(names[i]) + 3, RLENGTH - length(names[i]) - 3)
      }
      print value[1] + value[2], value[3], value[4]
    }'
}

# processor_figures: hundredths of a second in all, idle, waiting for I/O, of the whole machine.
processor_figures() {
  awk '$1 == "cpu" { for (i = 2; i <= 9; i++) all += $i; print all, $5, $6 }' /proc/stat
}

# measure NAME CLIENTS: appends a row to the table.
measure() {
  local before after
  rm -f "$dir/run/log".*
  before="$(disk_figures) $(processor_figures)"
  as_postgres pgbench -h "$dir/run" -U postgres -n -M prepared -c "$2" \
    -j 2 -T "$run_seconds" -l --log-prefix="$dir/run/log" bench >"$dir/speed" 2>&1 ||
    { cat "$dir/speed"; fail "pgbench failed"; }
  after="$(disk_figures) $(processor_figures)"
  cat "$dir/run/log".* | awk '{ print $3 }' | sort -n | awk \
    -v name="$1" -v clients="$2" -v seconds="$run_seconds" -v before="$before" -v after="$after" '
    { us[NR] = $1; sum += $1 }
    END {
      split(before, old, " ")
      split(after, new, " ")
      for (i = 1; i <= 6; i++) d[i] = new[i] - old[i]
      printf "%d %s %.1f %.1f %.1f %.1f %.1f %.1f %.1f %.1f\n", clients, name, NR / seconds,
        sum / NR / 1e3, us[int((NR - 1) * 0.95) + 1] / 1e3, d[1] / seconds,
        100 * d[2] / seconds, d[1] ? 1e3 * d[3] / d[1] : 0, 100 * d[6] / d[4], 100 * d[5] / d[4]
    }' >>"$dir/rows"
  say "$2 clients, $1: $(tail -1 "$dir/rows" | cut -d ' ' -f 3) transactions/s"
}

# warm: reads what a server that has run for a while would have read.
warm() { query 'select count(*), sum(abalance) from pgbench_accounts' >/dev/null; }

# users NAME SETTINGS: one run for each number of clients.
users() {
  local count
  serve "$hdd,$2"
  attach
  mount "$loop" "$dir/mnt"
  start_limited
  [[ $1 == bypass ]] || warm
  for count in "${client_counts[@]}"; do measure "$1" "$count"; done
  stop_postgres
  detach
  stop_server
}

make_group
hdd="v=model:hdd?backing=$dir/disk"
write_back="mode=write-back,protection=journal,journal=model:ssd?backing=$dir/journal"
truncate -s 3G "$dir/disk"
truncate -s 1G "$dir/journal"
make_database "$hdd,$write_back"
stop_postgres
detach
stop_server
users bypass mode=bypass
users cache "$write_back"

awk -v rate_min="$rate_min" '
  BEGIN {
    printf "%8s %-7s %8s %9s %9s %7s %6s %8s %7s %7s  %s\n", "clients", "", "tps", "mean ms",
      "p95 ms", "I/Os/s", "busy%", "wait ms", "iowait%", "idle%", "tps relative to bypass"
  }
  {
    verdict = "information"
    if ($2 == "bypass") first[$1] = $3
    else {
      ratio = $3 / first[$1]
      verdict = sprintf("%.2f, >= %s %s", ratio, rate_min, ratio >= rate_min ? "met" : "MISSED")
      missed += ratio < rate_min
    }
    printf "%8d %-7s %8.1f %9.1f %9.1f %7.1f %6.1f %8.1f %7.1f %7.1f  %s\n", $1, $2, $3, $4, $5,
      $6, $7, $8, $9, $10, verdict
  }
  END { exit missed > 0 }' < <(sort -s -n -k 1,1 "$dir/rows") ||
  fail "limits of the rate were missed"
say "busy, wait: of the disk; iowait, idle: of the processors, with all that the machine does"
