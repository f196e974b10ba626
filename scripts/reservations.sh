#!/usr/bin/env bash
# Persistent reservations: one disk of the kernel's SCSI target (LIO) with two ports, behind which
# two servers stand as on two hosts. The second one is refused, also while the first one is dead,
# takes the disk over, and nothing that the first one writes later reaches the disk.
#
# Then they take it over from each other many times while clients write.
#
#   scripts/reservations.sh [TAKEOVERS]
#
# PROGRAMS selects other programs than the release build. It takes some minutes, and a minute for
# each ten takeovers; scripts/guest.sh has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

programs=${PROGRAMS:-$(target_dir)/release}
takeovers=${1:-10}
timeout_seconds=$((1200 + 30 * takeovers))
for program in forebay takeovers; do
  [[ -x $programs/$program ]] || fail "$programs/$program is not built: run cargo build --release" \
    "--workspace --bins first"
done
need_qemu
need fio=fio mkfs.ext4=e2fsprogs iscsistart=open-iscsi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

pack() {
  say "packing the guest"
  begin_guest scripts/reservations-guest.sh
  add_program "$programs/forebay" forebay
  add_program "$programs/takeovers" takeovers
  add_program fio
  add_program mkfs.ext4
  add_program iscsistart
  add_modules crc32c_generic virtio_pci virtio_blk ext4 configfs target_core_mod target_core_file \
    iscsi_target_mod iscsi_tcp sd_mod
  end_guest
}

boot() {
  local command
  qemu_command
  truncate -s 64M "$dir/state.img"
  # shellcheck disable=SC2054
  command+=(-drive "file=$dir/state.img,if=none,id=state,format=raw"
    -device "virtio-blk-pci,drive=state")
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" "${command[@]}" -nographic -nic none \
    -append "$kernel_options forebay.takeovers=$takeovers" </dev/null 2>&1 | show_console
}

fetch_kernel
pack
boot || fail "the guest did not end by itself within $timeout_seconds s"
expect_passed
