#!/usr/bin/env bash
# Boots a Debian kernel under QEMU and attaches volumes of a Forebay server in the same guest as
# block devices, with a file system on each. Under load, the server is killed and upgraded again and
# again: no request may fail, and nothing may be lost. The guest has no disk and no network.
#
#   scripts/attach.sh [ROUNDS [ublk|nbd]]
#
# ROUNDS kills and as many upgrades (5), over the kernel's driver ublk or its NBD client. FOREBAY
# selects another program than the release build. The emulated guest takes some minutes;
# scripts/guest.sh has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

rounds=${1:-5}
driver=${2:-ublk}
forebay=${FOREBAY:-$(target_dir)/release/forebay}
timeout_seconds=$((1200 + 120 * rounds))
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need_qemu
need mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs setpriv=util-linux

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

pack() {
  say "packing the guest"
  begin_guest scripts/attach-guest.sh
  add_program "$forebay" forebay
  local program
  for program in mkfs.ext4 e2fsck resize2fs mkfs.xfs xfs_repair; do add_program "$program"; done
  # The one of busybox changes no user.
  add_program setpriv set-user
  case $driver in
    # Both, of which the program has to choose this one.
    ublk) add_modules crc32c_generic ext4 xfs nbd ublk_drv ;;
    nbd) add_modules crc32c_generic ext4 xfs nbd ;;
    *) fail "no driver $driver: ublk or nbd" ;;
  esac
  end_guest
}

boot() {
  local command
  qemu_command
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" "${command[@]}" -nographic -nic none \
    -append "$kernel_options forebay_rounds=$rounds forebay_driver=$driver" </dev/null 2>&1 |
    show_console
}

fetch_kernel
pack
boot || fail "the guest did not end by itself within $timeout_seconds s"
expect_passed
