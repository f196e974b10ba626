# The tables of scripts/md-peers.sh, from the output of its guest:
#
#   measured CONTENDER PHASE ORDER KIB REGION DEPTH KIB_WRITTEN MS CLEAN_MS BEFORE AFTER
#   latency CONTENDER P50 P99 READS P50 P99 READS BEFORE AFTER
#   hits CONTENDER P50 P99 READS P50 P99 READS
#
# BEFORE and AFTER are three counters of sectors: written to the array, written to its members, and
# read from its members. The first three figures of `latency` are idle ones, in microseconds. Those
# of `hits` are one at a time and 16 at a time, in 3 s each.
#
# md does not count whole stripes, so their share is derived. md works in rows: a block of 4 KiB on
# each member. Each write of a row writes its parity once, so the number of rows is the difference
# between blocks written to the members and to the array. A whole row reads nothing, any other at
# least one block, unless md has cached it: so at least `rows - read` are whole, apart from those. A
# partial row has at least one block of data: so at most `(data - rows) / (drives - 2)` are whole.
# The smaller of the two is shown.

function full(data, written, read,   rows, by_read, by_data) {
  rows = written - data
  if (rows <= 0) return "-"
  by_read = rows - read
  by_data = (data - rows) / (drives - 2)
  if (by_data < by_read) by_read = by_data
  if (by_read < 0) by_read = 0
  return sprintf("%d%%", 100 * by_read / rows + 0.5)
}

function note(key, order) {
  if (key in seen) return
  seen[key] = 1
  order[++count] = key
}

BEGIN {
  drives = 15
  contenders = split("bare forebay through bcache writecache dmcache", contender)
}

$1 == "measured" {
  rate = $8 * 1.024 / ($9 + ($3 == "sustained" ? $10 : 0))
  if ($3 == "stripes") {
    if (rate > stripes) stripes = rate
    next
  }
  key = $4 " " $5 " KiB in " $6 " MiB, " $3
  note(key, keys)
  rates[key, $2] = rate
  clean[key, $2] = $10 / 1000
  whole[key, $2] = full(($14 - $11) / 8, ($15 - $12) / 8, ($16 - $13) / 8)
  if (key ~ /^sequential.*sustained/) goal[key] = 0.95 * stripes
  next
}

$1 == "latency" {
  latency[$2] = sprintf("%10.1f %10.1f %10.1f %10.1f %12.1f", $3 / 1000, $4 / 1000, $6 / 1000,
    $7 / 1000, ($12 - $9) * 512 / 1e6)
}

$1 == "hits" {
  hits[$2] = sprintf("%10.0f %10.0f", $5 / 3, $8 / 3)
}

END {
  printf "\nMB/s, ratio to the bare array, share of rows that md certainly wrote whole:\n\n%-37s", ""
  for (c = 1; c <= contenders; c++) printf " %19s", contender[c]
  print ""
  for (k = 1; k <= count; k++) {
    key = keys[k]
    printf "%-37s", key
    for (c = 1; c <= contenders; c++) {
      name = contender[c]
      if (!((key, name) in rates)) { printf " %19s", "-"; continue }
      times = rates[key, "bare"] ? sprintf("x%.1f", rates[key, name] / rates[key, "bare"]) : ""
      printf " %7.1f %6s %4s", rates[key, name], times, whole[key, name]
    }
    print ""
  }
  printf "\nSequential whole stripes, many in flight, on the bare array: %.1f MB/s\n", stripes
  printf "\nSeconds until all data was on the array, included in the sustained rates:\n\n"
  for (k = 1; k <= count; k++) {
    if (keys[k] !~ /sustained/) continue
    printf "%-37s", keys[k]
    for (c = 1; c <= contenders; c++) printf " %19.2f", clean[keys[k], contender[c]]
    print ""
  }
  printf "\nRandom reads of 4 KiB, one at a time, in ms:\n\n"
  printf "%-12s %10s %10s %10s %10s %12s\n", "", "idle p50", "p99", "dirty p50", "p99", "MB written"
  for (c = 1; c <= contenders; c++)
    if (contender[c] in latency) printf "%-12s %s\n", contender[c], latency[contender[c]]
  printf "\nRandom reads of 4 KiB from the cache, IOPS with one and 16 at a time:\n\n"
  printf "%-12s %10s %10s\n", "", "one", "16"
  for (c = 1; c <= contenders; c++)
    if (contender[c] in hits) printf "%-12s %s\n", contender[c], hits[contender[c]]
  print ""
  for (k = 1; k <= count; k++) {
    key = keys[k]
    if (!((key, "forebay") in rates)) continue
    best = 0
    for (c = 4; c <= contenders; c++)
      if (rates[key, contender[c]] > best) best = rates[key, contender[c]]
    if (key in goal && goal[key])
      printf "%s: %.0f %% of whole stripes (goal: 95)\n", key,
        100 * rates[key, "forebay"] / stripes
    else if (best && key ~ /^random 4 /)
      printf "%s: %.2f of the best peer (goal: 1)\n", key, rates[key, "forebay"] / best
  }
}
