#!/usr/bin/env bash
# Boots a Debian kernel under QEMU with file systems on block devices of a Forebay server in the
# same guest: ext4 on a RAID 5 of four disks behind a journal, and XFS on a plain disk. Under load,
# the server is killed, killed with its keeper, and upgraded; then memory becomes so short that
# nothing but writeback through the server frees any. No request may fail, and nothing may be lost.
#
#   scripts/stress.sh [ROUNDS [SECONDS [ublk|nbd]]]
#
# ROUNDS of each (3), and SECONDS of short memory (120), over the kernel's driver ublk or its NBD
# client. FSX and FSSTRESS are programs of xfstests;
# without them, their part is left out. FOREBAY selects another program than the release build. The
# emulated guest takes some minutes; scripts/guest.sh has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

rounds=${1:-3}
seconds=${2:-120}
driver=${3:-ublk}
forebay=${FOREBAY:-$(target_dir)/release/forebay}
timeout_seconds=$((1800 + 200 * rounds + 4 * seconds))
guest_memory=900M
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need_qemu
need mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mdadm=mdadm fio=fio

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

pack() {
  say "packing the guest"
  begin_guest scripts/stress-guest.sh
  add_program "$forebay" forebay
  local program
  for program in mkfs.ext4 e2fsck mkfs.xfs xfs_repair mdadm fio fstrim; do
    add_program "$program"
  done
  if [[ -n ${FSX:-} ]]; then add_program "$FSX" fsx; fi
  if [[ -n ${FSSTRESS:-} ]]; then add_program "$FSSTRESS" fsstress; fi
  add_modules crc32c_generic virtio_pci virtio_blk raid456 ext4 xfs
  case $driver in
    ublk) add_modules ublk_drv ;;
    nbd) add_modules nbd ;;
    *) fail "no driver $driver: ublk or nbd" ;;
  esac
  end_guest
}

boot() {
  local command disk
  qemu_command
  for disk in 1 2 3 4; do truncate -s 256M "$dir/array$disk.img"; done
  truncate -s 512M "$dir/plain.img"
  truncate -s 64M "$dir/journal.img" "$dir/state.img"
  for disk in array1 array2 array3 array4 plain journal state; do
    command+=(-drive "file=$dir/$disk.img,if=none,id=$disk,format=raw,discard=unmap"
      -device "virtio-blk-pci,drive=$disk,serial=$disk")
  done
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" "${command[@]}" -nographic -nic none \
    -append "$kernel_options forebay_rounds=$rounds forebay_seconds=$seconds \
      forebay_driver=$driver" \
    </dev/null 2>&1 | show_console
}

fetch_kernel
pack
boot || fail "the guest did not end by itself within $timeout_seconds s"
expect_passed
