#!/usr/bin/env bash
# Compares Forebay with the kernel's own caches on an md array: a Debian kernel under QEMU makes a
# RAID 5 of 15 null_blk disks with chunks of 8 KiB, and writes to it and reads from it with fio,
# directly and behind each cache, all in the same guest.
#
#   scripts/md-peers.sh [CASE-FILE]
#
# Without a file it is the cases below. PEERS_CONTENDERS names some of the contenders, with `bare`
# among them for the ratios; PEERS_DISK_MS is what an I/O of a disk takes (5), PEERS_DISK_KIB how
# much it does at once (1280). It takes half an hour, and is given up after PEERS_TIMEOUT seconds
# (7200). The program is taken from the release build; FOREBAY names another one. scripts/guest.sh
# says what else can be set.
#
# The contenders, each with 64 MiB, made anew for each measurement, at its defaults but for this:
#
#   bare        the array, with a stripe cache of 256, its default
#   forebay     mode=write-back,protection=none,accept-loss=yes, over the kernel's nbd client
#   through     Forebay with mode=write-through
#   bcache      writeback, sequential_cutoff=0, congested_*_threshold_us=0, buckets of 64 KiB, data
#               from the second stripe on; the cache is a RAM disk (brd)
#   writecache  dm-writecache in its SSD mode, blocks of 4 KiB, on a RAM disk
#   dmcache     dm-cache, writeback, smq, blocks of 64 KiB; data and metadata on RAM disks
#
# A burst fits what each of them lets be dirty, and its rate is what the client sees. In what is
# sustained, the rate has the time until all is on the array: Forebay is flushed (fsync), bcache
# detached, dm-writecache told to flush, and dm-cache given the policy `cleaner`, until they say
# that nothing is dirty. What is as slow at the end as at the beginning is stopped after 20 s, and
# any other after 300 s.
#
# The guest's clock counts its instructions, a nanosecond for each, and skips what it sleeps, so
# that neither the emulation nor a busy machine is in what is measured. The time of the guest's
# only processor is: a burst into memory is nothing else. On slower disks less of it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

forebay=${FOREBAY:-$(target_dir)/release/forebay}
timeout_seconds=${PEERS_TIMEOUT:-7200}
guest_memory=3G
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need_qemu
need mdadm=mdadm fio=fio nbd-client=nbd-client make-bcache=bcache-tools dmsetup=dmsetup \
  strip=binutils

# Order, KiB of a request, MiB of the array that are written, MiB in a burst, MiB sustained, depth.
# `stripes` is how much the bare array takes in whole stripes, `latency` what reads feel.
cases() {
  cat <<'END'
stripes 112 512 256 0 128
stripes 1008 512 256 0 16
sequential 64 256 16 128 1
random 64 512 16 128 1
sequential 4 256 16 128 1
random 4 16 16 128 1
random 4 256 16 192 1
latency
END
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

pack() {
  say "packing the guest"
  begin_guest scripts/md-peers-guest.sh
  add_program "$forebay" forebay
  strip "$dir/guest/bin/forebay"
  local program
  for program in mdadm fio nbd-client make-bcache dmsetup; do add_program "$program"; done
  add_modules crc32c_generic configfs null_blk raid456 nbd brd bcache dm-writecache dm-cache \
    dm-cache-smq
  cat >"$dir/guest/data/settings" <<END
contenders="${PEERS_CONTENDERS:-bare forebay through bcache writecache dmcache}"
disk_ms=${PEERS_DISK_MS:-5}
disk_kib=${PEERS_DISK_KIB:-1280}
cache_mib=64
forebay_memory=112MiB
END
  if (($#)); then cat "$1"; else cases; fi >"$dir/guest/data/cases"
  end_guest
}

boot() {
  local command
  qemu_command
  # With these two, a kernel copies byte by byte, as far as the count of instructions goes.
  command=("${command[@]/#max/max,-erms,-fsrm}")
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" "${command[@]}" -icount shift=0,sleep=off -nographic -nic none \
    -append "console=ttyS0 quiet panic=-1" </dev/null 2>&1 |
    stdbuf -oL tr -d '\r' | tee "$dir/console"
}

fetch_kernel
pack "$@"
boot || fail "the guest did not end by itself within $timeout_seconds s"
grep -qx 'guest: all measured' "$dir/console" || fail "the guest did not measure: see above"
awk -f scripts/md-peers.awk "$dir/console"
say "information: no figure of these has a limit"
