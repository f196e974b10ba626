#!/usr/bin/env bash
# A disk over iSCSI below a server: the kernel's initiator, and the kernel's target (LIO), which is
# away for a while under load. No request of a client fails, and all bytes read back.
#
# Then the kernel's initiator and libiscsi read the same disk in turn, for the question whether the
# server should speak iSCSI itself (decision 68). Prints their requests per second.
#
#   scripts/iscsi.sh [ROUNDS]
#
# ROUNDS is the number of these comparisons (3). PROGRAMS selects other programs than the release
# build. It takes some minutes; scripts/guest.sh has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

programs=${PROGRAMS:-$(target_dir)/release}
rounds=${1:-3}
timeout_seconds=$((900 + 120 * rounds))
[[ -x $programs/forebay ]] || fail "$programs/forebay is not built: run cargo build --release first"
need_qemu
need fio=fio iscsid=open-iscsi iscsi-perf=libiscsi-bin

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

pack() {
  say "packing the guest"
  begin_guest scripts/iscsi-guest.sh
  add_program "$programs/forebay" forebay
  local program
  for program in fio iscsid iscsiadm iscsi-perf; do add_program "$program"; done
  add_modules crc32c_generic configfs target_core_mod target_core_file iscsi_target_mod iscsi_tcp \
    sd_mod
  end_guest
}

boot() {
  local command
  qemu_command
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" "${command[@]}" -nographic -nic none \
    -append "$kernel_options forebay.rounds=$rounds" </dev/null 2>&1 | show_console
}

fetch_kernel
pack
boot || fail "the guest did not end by itself within $timeout_seconds s"
expect_passed
