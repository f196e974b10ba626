#!/usr/bin/env bash
# Volumes for other hosts: block devices of `forebay attach` behind the targets of the kernel for
# NVMe/TCP and iSCSI (LIO), and behind tgt, as docs/recipes has them. In one emulated guest, which
# is its own client, every block is read back while the server is killed and upgraded.
#
#   scripts/targets.sh
#
# FOREBAY selects another program than the release build. It takes some minutes; scripts/guest.sh
# has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

forebay=${FOREBAY:-$(target_dir)/release/forebay}
timeout_seconds=1200
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need_qemu
need fio=fio tgtd=tgt iscsistart=open-iscsi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

pack() {
  local program
  say "packing the guest"
  begin_guest scripts/targets-guest.sh
  add_program "$forebay" forebay
  for program in fio tgtd tgtadm iscsistart; do add_program "$program"; done
  add_modules configfs crc32c_generic ublk_drv nvmet nvmet_tcp nvme_tcp target_core_mod \
    target_core_iblock iscsi_target_mod iscsi_tcp sd_mod
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
