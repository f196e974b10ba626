#!/usr/bin/env bash
# A volume that two hosts export over NVMe/TCP under the same name, and a file system on an
# initiator with multipath, which sees no error while the hosts take the volume over from each
# other: docs/recipes/failover-multipath.md. Three guests: the two hosts, and one that is both their
# shared disk and the initiator.
#
#   scripts/failover.sh
#
# PROGRAMS selects other programs than the release build. It needs Linux 6.16 or later
# (scripts/guest.sh says how to choose one), and is skipped with an older one. It takes some
# minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

programs=${PROGRAMS:-$(target_dir)/release}
timeout_seconds=1800
# shellcheck disable=SC2034
guest_memory=1536M
[[ -x $programs/forebay ]] || fail "$programs/forebay is not built: run cargo build --release first"
need_qemu
need fio=fio mkfs.ext4=e2fsprogs

dir=$(mktemp -d)
guests=()
trap 'kill "${guests[@]}" 2>/dev/null || true; rm -rf "$dir"' EXIT

pack() {
  local program
  say "packing the guests"
  begin_guest scripts/failover-guest.sh
  add_program "$programs/forebay" forebay
  for program in fio mkfs.ext4 e2fsck; do add_program "$program"; done
  cp contrib/nvmet/forebay-export "$dir/guest/bin/"
  add_modules crc32c_generic virtio_pci virtio_net virtio_blk ext4 configfs nvmet nvmet_tcp \
    nvme_tcp nbd
  end_guest
}

# boot ROLE OPTION...: a guest, with further options of QEMU.
boot() {
  local command role=$1
  shift
  qemu_command
  # Ended by a signal to this process.
  exec timeout "$timeout_seconds" "${command[@]}" "$@" -nographic \
    -append "$kernel_options forebay.role=$role" </dev/null
}

# connection SIDE NAME: options of QEMU for one side of a cable.
connection() {
  local mac=52:54:00:00:00:0$(($1 == 1 ? 1 : 2)) server=off
  [[ $1 == 2 ]] || server=on
  [[ $2 == one ]] || mac=${mac/00:0/10:0}
  echo -netdev "stream,id=$2,server=$server,addr.type=unix,addr.path=$dir/$2.socket" \
    -device "virtio-net-pci,netdev=$2,mac=$mac,romfile="
}

run_guests() {
  local host i
  say "booting $(basename "$cache"/boot/vmlinuz-*) three times"
  # shellcheck disable=SC2046
  boot initiator $(connection 1 one) $(connection 1 two) >"$dir/output" 2>&1 &
  local initiator=$!
  guests+=("$initiator")
  for host in one two; do
    for ((i = 0; i < 300; i++)); do
      if [[ -S $dir/$host.socket ]]; then break; fi
      sleep 0.1
    done
    truncate -s 64M "$dir/$host.img"
    # shellcheck disable=SC2046
    boot "$host" $(connection 2 "$host") -drive "file=$dir/$host.img,if=none,id=state,format=raw" \
      -device virtio-blk-pci,drive=state >"$dir/$host.log" 2>&1 &
    guests+=("$!")
  done
  tail -n +1 -f --pid="$initiator" "$dir/output" | show_console
  wait "$initiator" || fail "the guest did not end by itself within $timeout_seconds s"
}

# has_delayed_removal: whether a namespace of the kernel waits for a path when it has lost all.
has_delayed_removal() {
  xz -dc "$cache"/lib/modules/*/kernel/drivers/nvme/host/nvme-core.ko* |
    grep -c delayed_removal_secs >/dev/null
}

fetch_kernel
if ! has_delayed_removal; then
  say "skipped: NVMe multipath of $(basename "$cache"/boot/vmlinuz-*) does not wait for paths"
  exit 0
fi
pack
run_guests
grep -qx 'guest: all passed' "$dir/console" || {
  for host in one two; do
    say "host $host"
    tail -n 40 "$dir/$host.log"
  done
  fail "the guests did not pass: see above"
}
