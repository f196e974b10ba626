#!/usr/bin/env bash
# Persistent reservations: one disk of a target of the kernel's, with two sessions to it, behind
# which two servers stand as on two hosts. The second one is refused, also while the first one is
# dead, takes the disk over, and nothing that the first one writes later reaches the disk.
#
# Then they take it over from each other many times while clients write.
#
#   scripts/reservations.sh
#
# DISKS=nvme has namespaces of nvmet over TCP; the default, iscsi, disks of LIO. Reservations of
# nvmet need a kernel from 6.13 on (scripts/guest.sh says how to choose one); with an older one, the
# test says so and is skipped.
#
# TAKEOVERS (10) is the number of those by command, WATCHED (4) that of those by hosts that watch
# the journal. PROGRAMS selects other programs than the release build. It takes some minutes, and a
# minute for each ten takeovers; scripts/guest.sh has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

programs=${PROGRAMS:-$(target_dir)/release}
disks=${DISKS:-iscsi}
takeovers=${TAKEOVERS:-10}
watched=${WATCHED:-4}
case $disks in
  iscsi) modules="target_core_mod target_core_file iscsi_target_mod iscsi_tcp sd_mod" ;;
  nvme) modules="nvmet nvmet_tcp nvme_tcp" ;;
  *) fail "DISKS is iscsi or nvme" ;;
esac
timeout_seconds=$((1200 + 30 * (takeovers + watched)))
for program in forebay takeovers; do
  [[ -x $programs/$program ]] || fail "$programs/$program is not built: run cargo build --release" \
    "--workspace --bins first"
done
need_qemu
need fio=fio mkfs.ext4=e2fsprogs
[[ $disks != iscsi ]] || need iscsistart=open-iscsi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

pack() {
  say "packing the guest"
  begin_guest scripts/reservations-guest.sh
  add_program "$programs/forebay" forebay
  add_program "$programs/takeovers" takeovers
  add_program fio
  add_program mkfs.ext4
  [[ $disks != iscsi ]] || add_program iscsistart
  # shellcheck disable=SC2086
  add_modules crc32c_generic virtio_pci virtio_blk ext4 configfs $modules
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
    -append "$kernel_options forebay.disks=$disks forebay.takeovers=$takeovers \
      forebay.watched=$watched" </dev/null 2>&1 | show_console
}

# has_reservations: whether the kernel's NVMe target has them.
has_reservations() {
  xz -dc "$cache"/lib/modules/*/kernel/drivers/nvme/target/nvmet.ko* |
    grep -c resv_enable >/dev/null
}

fetch_kernel
if [[ $disks == nvme ]] && ! has_reservations; then
  say "skipped: the NVMe target of $(basename "$cache"/boot/vmlinuz-*) has no reservations"
  exit 0
fi
pack
boot || fail "the guest did not end by itself within $timeout_seconds s"
expect_passed
