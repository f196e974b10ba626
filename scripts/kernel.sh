#!/usr/bin/env bash
# Boots a Debian kernel under QEMU and attaches its NBD client to a Forebay server in the same
# guest: files on ext4 and xfs are pinned and followed; then both are created again, loaded by
# several writers, checked, and read back. The guest has no disk and no network; everything is in
# its initramfs.
#
#   scripts/kernel.sh
#
# FOREBAY selects another program than the release build. The emulated guest takes a minute or two;
# scripts/guest.sh has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

forebay=${FOREBAY:-$(target_dir)/release/forebay}
timeout_seconds=900
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need_qemu
need mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs nbd-client=nbd-client

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

pack() {
  say "packing the guest"
  begin_guest scripts/kernel-guest.sh
  add_program "$forebay" forebay
  local program
  for program in nbd-client mkfs.ext4 e2fsck mkfs.xfs xfs_repair; do add_program "$program"; done
  add_modules crc32c_generic nbd ext4 xfs
  # Real data to copy: about eight megabytes of this machine's files.
  { find /usr/share /usr/lib -xdev -type f -readable -size +3k -size -64k 2>/dev/null || true; } |
    sed 800q | tar --create --files-from=- 2>/dev/null | tar --extract --directory="$dir/guest/data"
  end_guest
}

boot() {
  local command
  qemu_command
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" "${command[@]}" -nographic -nic none \
    -append "$kernel_options" </dev/null 2>&1 | show_console
}

fetch_kernel
pack
boot || fail "the guest did not end by itself within $timeout_seconds s"
expect_passed
