#!/usr/bin/env bash
# Boots Debian 12 with its systemd 252, or another release, under QEMU, with the unit of
# contrib/systemd installed: the boot must not wait for it, and it is started, reloaded, upgraded,
# killed, restarted and stopped there, as its own user and with disks of the guest. Meanwhile a file
# system on a block device of one of them, mounted at boot, is written. At the end, clients connect
# to the socket of contrib/systemd while the service is stopped, and while it restarts.
#
#   scripts/service.sh [OLD NEW]
#
# With two packages of different versions, the guest installs the old one instead, boots with it,
# and upgrades to the new one and removes it under load: see scripts/package-guest.sh.
#
# SERVICE_DRIVER=nbd gives the guest the NBD client of the kernel instead of ublk.
#
# Needs root, for debootstrap. SERVICE_SUITE=trixie selects Debian 13, whose systemd 257 keeps the
# pool itself. FOREBAY selects another program than the release build, SERVICE_CACHE a directory
# that keeps the system between runs, and DEBIAN_MIRROR where its packages are fetched. The emulated
# guest takes some minutes; scripts/guest.sh has further settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

driver=${SERVICE_DRIVER:-ublk_drv}
forebay=${FOREBAY:-$(target_dir)/release/forebay}
suite=${SERVICE_SUITE:-bookworm}
# A system that has had the service is none for the packages.
kind=service
if (($#)); then kind=package; fi
system=${SERVICE_CACHE:-$(target_dir)/service-test}-$kind-$suite
timeout_seconds=1800
[[ $kind == package || -x $forebay ]] ||
  fail "$forebay is not built: run cargo build --release first"
[[ $(id -u) == 0 ]] || fail "debootstrap needs root"
need_qemu
need debootstrap=debootstrap mkfs.ext4=e2fsprogs

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# fetch_system: the unpacked Debian in $system/tree.
fetch_system() {
  [[ -e $system/complete ]] && return
  say "fetching Debian $suite"
  rm -rf "$system"
  mkdir -p "$system"
  debootstrap --variant=minbase --include=systemd-sysv,udev "$suite" "$system/tree" \
    ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$system/log" ||
    { tail "$system/log"; fail "debootstrap failed"; }
  touch "$system/complete"
}

# install_test SCRIPT: a service that runs the test at boot, with its output on the console.
install_test() {
  local units=$system/tree/etc/systemd/system
  install_file "$1" "$system/tree/usr/local/bin/service-test"
  chmod +x "$system/tree/usr/local/bin/service-test"
  cat >"$units/service-test.service" <<'UNIT'
[Unit]
Description=Test of the service

[Service]
ExecStart=/usr/local/bin/service-test
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0

[Install]
WantedBy=multi-user.target
UNIT
  mkdir -p "$units/multi-user.target.wants"
  ln -sf ../service-test.service "$units/multi-user.target.wants/"
  # A login on the console would be in the way of the test's lines.
  ln -sf /dev/null "$units/serial-getty@ttyS0.service"
}

# write_settings FILE: two volumes on disks of the guest.
write_settings() {
  mkdir -p "$(dirname "$1")"
  cat >"$1" <<'TOML'
memory = "64MiB"
nbd = ["unix:/run/forebay/nbd.sock,mode=0660,group=disk"]

[[volume]]
name = "first"
backing = "/dev/vdb"

[[volume]]
name = "mounted"
backing = "/dev/vdd"
TOML
}

mount_options=_netdev,x-systemd.requires=forebay-attach@mounted.service

# install_service: the program, the unit with its user and link, and the test.
install_service() {
  local units=$system/tree/etc/systemd/system
  install_test scripts/service-guest.sh
  install_file "$forebay" "$system/tree/usr/local/bin/forebay"
  install_file contrib/systemd/forebay.service "$units/forebay.service"
  install_file contrib/systemd/forebay.socket "$units/forebay.socket"
  install_file contrib/systemd/forebay.sysusers "$system/tree/etc/sysusers.d/forebay.conf"
  install_file contrib/systemd/forebay.tmpfiles "$system/tree/etc/tmpfiles.d/forebay.conf"
  install_file contrib/systemd/forebay-attach@.service "$units/forebay-attach@.service"
  install_file contrib/systemd/forebay.rules "$system/tree/etc/udev/rules.d/60-forebay.rules"
  systemd-sysusers --root="$system/tree" 2>/dev/null || chroot "$system/tree" systemd-sysusers
  write_settings "$system/tree/etc/forebay/forebay.toml"
  echo "/dev/forebay/mounted /srv ext4 $mount_options 0 0" >"$system/tree/etc/fstab"
  ln -sf ../forebay.service "$units/multi-user.target.wants/"
  ln -sf ../forebay-attach@.service "$units/multi-user.target.wants/forebay-attach@mounted.service"
}

# install_packages OLD NEW: the packages and the test, which installs them.
install_packages() {
  install_test scripts/package-guest.sh
  install_file "$1" "$system/tree/packages/old.deb"
  install_file "$2" "$system/tree/packages/new.deb"
  write_settings "$system/tree/packages/forebay.toml"
  echo "/dev/forebay/mounted /srv ext4 $mount_options,nofail 0 0" >"$system/tree/packages/fstab"
}

# pack: the system as a disk, and an initramfs that mounts it.
pack() {
  say "packing the guest"
  mkfs.ext4 -q -d "$system/tree" "$dir/root.img" 1500M
  truncate -s 64M "$dir/first.img" "$dir/second.img" "$dir/mounted.img"
  mkfs.ext4 -q "$dir/mounted.img"
  begin_guest scripts/service-init.sh
  add_modules crc32c_generic virtio_pci virtio_blk ext4 "$driver"
  end_guest
}

boot() {
  local command
  qemu_command
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" "${command[@]}" -nographic -nic none \
    -drive "file=$dir/root.img,format=raw,if=virtio" \
    -drive "file=$dir/first.img,format=raw,if=virtio" \
    -drive "file=$dir/second.img,format=raw,if=virtio" \
    -drive "file=$dir/mounted.img,format=raw,if=virtio" \
    -append "$kernel_options systemd.show_status=no" </dev/null 2>&1 |
    show_console
}

fetch_kernel
fetch_system
if [[ $kind == package ]]; then install_packages "$@"; else install_service; fi
pack
if [[ $kind == package ]]; then
  boot || fail "the guest did not end by itself within $timeout_seconds s"
  grep -qx 'guest: installed' "$dir/console" || fail "the guest did not install the package"
fi
boot || fail "the guest did not end by itself within $timeout_seconds s"
expect_passed
