#!/usr/bin/env bash
# Compares Forebay with the kernel's own caches on an md array: a Debian kernel under QEMU creates
# a RAID 5 of 15 null_blk disks with chunks of 8 KiB, and reads and writes it with fio, directly
# and behind each cache, all in the same guest.
#
#   scripts/md-peers.sh [CASE-FILE]
#
# Without a file, the cases below are run. PEERS_CONTENDERS selects contenders, with `bare` among
# them for the ratios; PEERS_ATTACH is the driver of Forebay's block device (ublk, or nbd);
# PEERS_DISK_MS is the time of a disk's I/O (5), PEERS_DISK_KIB its maximum size (1280). The run
# takes half an hour, with a timeout of PEERS_TIMEOUT seconds (7200). FOREBAY selects another
# program than the release build. scripts/guest.sh has further settings.
#
# The contenders, each with 64 MiB, created anew for each measurement, with defaults except for:
#
#   bare        the array, with a stripe cache of 256, its default
#   forebay     mode=write-back,protection=none,accept-loss=yes, a block device of forebay attach
#   through     Forebay with mode=write-through
#   bcache      writeback, sequential_cutoff=0, congested_*_threshold_us=0, buckets of 64 KiB, data
#               from the second stripe on; the cache is a RAM disk (brd)
#   writecache  dm-writecache in its SSD mode, blocks of 4 KiB, on a RAM disk
#   dmcache     dm-cache, writeback, smq, blocks of 64 KiB; data and metadata on RAM disks
#
# A burst fits each contender's dirty limit, and its rate is the rate that the client sees. A
# sustained rate includes the time until all data is on the array: Forebay is flushed (fsync),
# bcache detached, dm-writecache flushed, and dm-cache given the policy `cleaner`, until they
# report no dirty data. A measurement with a constant rate is stopped after 20 s, any other after
# 300 s.
#
# The guest's clock counts its instructions, one nanosecond each, and skips its sleep, so neither
# the emulation nor a busy machine affects the figures. The time of the guest's only processor
# does: a burst into memory consists of nothing else. With slower disks its share is smaller.
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
need mdadm=mdadm fio=fio make-bcache=bcache-tools dmsetup=dmsetup \
  strip=binutils

# Order, KiB of a request, MiB of the array that are written, MiB in a burst, MiB sustained, depth.
# `stripes` is the rate of the bare array in whole stripes, `latency` the latency of
# uncached reads, `hits` that of cached ones.
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
hits
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
  for program in mdadm fio make-bcache dmsetup; do add_program "$program"; done
  add_modules crc32c_generic configfs null_blk raid456 nbd ublk_drv brd bcache dm-writecache \
    dm-cache dm-cache-smq
  cat >"$dir/guest/data/settings" <<END
contenders="${PEERS_CONTENDERS:-bare forebay through bcache writecache dmcache}"
disk_ms=${PEERS_DISK_MS:-5}
disk_kib=${PEERS_DISK_KIB:-1280}
cache_mib=64
forebay_memory=112MiB
attach=${PEERS_ATTACH:-ublk}
END
  if (($#)); then cat "$1"; else cases; fi >"$dir/guest/data/cases"
  end_guest
}

boot() {
  local command
  qemu_command
  # With these two, the instruction count of a kernel copy is that of a copy byte by byte.
  command=("${command[@]/#max/max,-erms,-fsrm}")
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" "${command[@]}" -icount shift=0,sleep=off -nographic -nic none \
    -append "$kernel_options" </dev/null 2>&1 |
    show_console
}

fetch_kernel
pack "$@"
boot || fail "the guest did not end by itself within $timeout_seconds s"
grep -qx 'guest: all measured' "$dir/console" || fail "the guest did not measure: see above"
awk -f scripts/md-peers.awk "$dir/console"
say "information: these figures have no limits"
