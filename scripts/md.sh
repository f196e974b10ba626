#!/usr/bin/env bash
# Compares the modelled arrays with Linux md: a Debian kernel under QEMU creates arrays of null_blk
# disks that take some milliseconds for each request, and measures patterns with fio; the model
# runs the same patterns. Fails if a rate of the model is not within 25 % of md's.
#
#   scripts/md.sh [PATTERN-FILE]
#
# Without a file, the patterns below are run; crates/backend/examples/arrays.rs describes the
# format. The guest's clock counts its instructions, one nanosecond each, and skips its sleep, so
# neither the emulation nor a busy machine affects the figures. The time of the guest's processor
# does, and the model has none: writes of many stripes are measured on slower disks. A run takes
# some ten minutes. scripts/guest.sh has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

timeout_seconds=1800
guest_memory=3G
need_qemu
need mdadm=mdadm fio=fio

# Level, drives, KiB of a chunk, missing drives, ms of a disk; then the pattern: order, kind, KiB of
# a request, depth, requests.
patterns() {
  cat <<'END'
raid5 15 8 0 5 sequential write 64 1 200
raid5 15 8 0 5 sequential write 64 8 400
raid5 15 8 0 5 random write 64 1 200
raid5 15 8 0 5 random write 64 8 400
raid5 15 8 0 5 sequential write 4 1 200
raid5 15 8 0 5 random write 4 1 200
raid5 15 8 0 5 random write 4 8 400
raid5 15 8 0 5 sequential write 112 1 200
raid5 15 8 0 5 sequential write 112 8 400
raid5 15 8 0 5 random write 112 1 200
raid5 15 8 0 5 random read 64 1 200
raid5 15 8 0 5 random read 64 8 400
raid5 15 8 0 5 random read 4 8 400
raid5 15 8 0 5 sequential read 64 1 200
raid5 15 8 0 5 sequential read 1008 1 100
raid5 15 8 0 50 sequential write 1008 1 50
raid5 15 8 0 50 sequential write 112 8 200
raid5 15 8 1 5 random read 64 1 200
raid5 15 8 1 5 random read 4 8 400
raid5 15 8 1 5 random write 4 1 200
raid5 15 8 1 5 sequential write 64 1 200
raid6 8 64 0 5 random write 4 1 200
raid6 8 64 0 5 random write 64 8 400
raid6 8 64 0 5 sequential write 64 1 200
raid6 8 64 0 5 random read 64 8 400
raid6 8 64 0 50 sequential write 384 1 100
raid6 8 64 2 5 random read 4 8 400
raid6 8 64 2 5 random write 4 1 200
raid10 4 64 0 5 random write 4 8 400
raid10 4 64 0 5 sequential write 64 1 200
raid10 4 64 0 5 sequential write 512 1 100
raid10 4 64 0 5 random read 4 8 400
raid10 4 64 0 5 sequential read 256 1 200
raid0 15 8 0 5 random write 4 8 400
raid0 15 8 0 5 sequential write 64 1 200
raid0 4 64 0 5 sequential write 1024 1 100
raid0 4 64 0 5 sequential read 1024 1 100
raid0 15 8 0 5 random read 64 8 400
raid1 2 4 0 5 random write 4 8 400
raid1 2 4 0 5 random read 4 8 400
raid1 2 4 0 5 sequential read 64 1 200
END
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

pack() {
  say "packing the guest"
  begin_guest scripts/md-guest.sh
  add_program mdadm
  add_program fio
  add_modules crc32c_generic configfs null_blk raid0 raid1 raid10 raid456
  if (($#)); then cat "$1"; else patterns; fi >"$dir/guest/data/patterns"
  end_guest
}

boot() {
  local command
  qemu_command
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" "${command[@]}" -icount shift=0,sleep=off -nographic -nic none \
    -append "$kernel_options" </dev/null 2>&1 |
    show_console
}

cargo build --quiet --release --package forebay-backend --example arrays
fetch_kernel
pack "$@"
boot || fail "the guest did not end by itself within $timeout_seconds s"
grep -qx 'guest: all measured' "$dir/console" || fail "the guest did not measure: see above"
grep '^measured ' "$dir/console" >"$dir/measured"
say "md and the model"
"$(target_dir)/release/examples/arrays" "$dir/measured"
