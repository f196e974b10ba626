#!/usr/bin/env bash
# Cuts the power of a machine whose file systems are on write-back volumes with journals: a Debian
# kernel under QEMU, its NBD client, ext4, and writers that call fsync all the time. The server
# runs outside the guest; both are killed at the same moment, and because disks and journals are
# under the layer `volatile`, all their unflushed data is lost, except for a share of its sectors.
# Then everything restarts from the images: ext4's journal is replayed, fsck must find no errors,
# and each file must be as its last fsync left it, or as an operation in flight may have left it.
#
#   scripts/power.sh [CUTS]
#
# The default is eight cuts, of about a minute each. Two volumes are cut at once, one with
# durability=ack and one with durability=flush, each with its own journal. FOREBAY selects another
# program than the release build; scripts/guest.sh has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

cuts=${1:-8}
guest_memory=1G
forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need_qemu
need mkfs.ext4=e2fsprogs nbd-client=nbd-client

# A journal in memory, where /tmp may be, is refused.
dir=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
server=
guest=
clean() {
  [[ -z $guest ]] || kill -9 "$guest" 2>/dev/null || true
  [[ -z $server ]] || kill -9 "$server" 2>/dev/null || true
  rm -rf "$dir"
}
trap clean EXIT

pack() {
  say "packing the guest"
  begin_guest scripts/power-guest.sh
  local program
  for program in nbd-client mkfs.ext4 e2fsck; do add_program "$program"; done
  add_program sync fsync
  add_modules virtio_pci virtio_net virtio_console crc32c_generic nbd ext4
  end_guest
}

# volume NAME DURABILITY: the specification of a volume.
volume() {
  local lossy="volatile(keep=0.4)"
  printf '%s=%s:%s,mode=write-back,protection=journal,durability=%s,journal=%s:%s' \
    "$1" "$lossy" "$dir/$1.disk" "$2" "$lossy" "$dir/$1.journal"
}

start_server() {
  rm -f "$dir/state/nbd.sock"
  "$forebay" serve --volume "$(volume ack ack)" --volume "$(volume flush flush)" \
    --nbd "unix:$dir/nbd.sock" --nbd tcp:127.0.0.1:0 --tls off --memory 96MiB \
    --keeper no --state "$dir/state" >>"$dir/log" 2>&1 &
  server=$!
  wait_for_socket "$dir/state/control.sock" "$server" || gave_up "the server did not start"
  port=$("$forebay" status --json --state "$dir/state" |
    sed -n 's/.*"tcp:127.0.0.1:\([0-9]*\)".*/\1/p' | head -1)
  [[ -n $port ]] || gave_up "the server does not say its port"
}

# start_guest TASK SEED: a guest that creates, checks, or checks for the last time.
start_guest() {
  local command
  qemu_command
  : >"$dir/report"
  "${command[@]}" -display none -monitor none -serial "file:$dir/console" \
    -nic user,model=virtio-net-pci,restrict=off -device virtio-serial-pci \
    -chardev "file,id=report,path=$dir/report" -device virtconsole,chardev=report \
    -append "$kernel_options forebay_port=$port forebay_task=$1 forebay_seed=$2" \
    >"$dir/qemu.log" 2>&1 </dev/null &
  guest=$!
}

gave_up() {
  tail -n 30 "$dir/log" "$dir/console" "$dir/qemu.log" 2>/dev/null || true
  fail "$*"
}

# wait_for WORD SECONDS: waits until the guest has reported it.
wait_for() {
  local end=$((SECONDS + $2))
  until grep -qx "$1" "$dir/report"; do
    ! grep -E '^(failed|fsck|replay)' "$dir/report" || gave_up "the guest found something wrong"
    kill -0 "$guest" 2>/dev/null || gave_up "the guest has ended before it reported '$1'"
    ((SECONDS < end)) || gave_up "the guest has not reported '$1' within $2 s"
    sleep 0.2
  done
}

# Both at once, by one call.
cut_power() {
  kill -9 "$server" "$guest"
  wait "$server" "$guest" 2>/dev/null || true
  server=
  guest=
}

# judge: reads all reports so far, and prints losses. The permitted states of a file are a set of
# checksums; "none" is no file, "any" is any content.
judge() {
  awk '
    function may(name, sum) { return index(allowed[name], " " sum " ") > 0 }
    function is_sum(sum) { return sum == "none" || length(sum) == 64 }
    $1 == "begin" && NF == 4 && is_sum($4) {
      if (!($3 in allowed)) allowed[$3] = " none "
      allowed[$3] = allowed[$3] ($2 == "write" ? " any " : " " $4 " ")
      next
    }
    $1 == "synced" && NF == 3 && is_sum($3) { allowed[$2] = " " $3 " "; synced++; next }
    $1 == "found" && NF == 3 && length($3) == 64 {
      if ($2 ~ /\.new$/) next
      if (!($2 in allowed)) { print "nobody wrote " $2; bad++ }
      else if (!may($2, $3) && !may($2, "any")) {
        print $2 " is " $3 ", and may be" allowed[$2]; bad++
      }
      found[$2] = $3
      next
    }
    $1 == "checked" {
      for (name in allowed) {
        if (!(name in found)) {
          if (!may(name, "none") && !may(name, "any")) { print name " is lost"; bad++ }
          found[name] = "none"
        }
        # Content present after the cut is durable.
        allowed[name] = " " found[name] " "
      }
      files = length(found)
      delete found
    }
    END { print files + 0 " files, " synced + 0 " fsyncs so far"; exit bad > 0 }
  ' "$dir/reports"
}

# next ROUND TASK: restarts everything from the images, and checks.
next() {
  start_server
  start_guest "$2" "$1"
  wait_for checked 1800
  cat "$dir/report" >>"$dir/reports"
  judge >"$dir/verdict" || { head -n 20 "$dir/verdict"; gave_up "round $1: not as it was synced"; }
}

fetch_kernel
pack
: >"$dir/reports"
for volume in ack flush; do
  truncate -s 384M "$dir/$volume.disk"
  truncate -s 48M "$dir/$volume.journal"
done
task="make"
for ((round = 1; round <= cuts; round++)); do
  next "$round" "$task"
  task="check"
  wait_for loading 600
  # A random moment: 6 to 14 s.
  sleep "$((6 + RANDOM % 8)).$((RANDOM % 10))"
  cut_power
  # Reports after the check.
  sed '1,/^checked$/d' "$dir/report" >>"$dir/reports"
  say "cut $round: $(grep -c ^synced "$dir/report" || true) fsyncs in this life;" \
    "after the cut before: $(cat "$dir/verdict")"
  rm -f "$dir/nbd.sock" "$dir/state/control.sock"
done
next "$((cuts + 1))" last
wait_for unmounted 1200
say "after the last cut: $(cat "$dir/verdict")"
wait "$guest" || true
guest=
kill -TERM "$server"
wait "$server" || gave_up "the server did not stop cleanly"
server=
for volume in ack flush; do
  e2fsck -fn "$dir/$volume.disk" >"$dir/check.log" 2>&1 ||
    { cat "$dir/check.log"; fail "fsck complains about the file behind the server"; }
done
say "$cuts cuts: every fsynced file is present, and the disks alone are consistent"
