#!/usr/bin/env bash
# Boots a Debian kernel under QEMU and has its nbd client use a Forebay server that runs in the
# same guest: ext4 and xfs are made on it, loaded by several writers, checked, and read back. The
# guest has no disk and no network; all it needs is packed into its initial memory file system.
#
#   scripts/kernel.sh
#
# The program is taken from the release build; FOREBAY names another one. KERNEL_PACKAGE names
# another kernel package, and KERNEL_CACHE a directory that keeps it from one run to the next.
# The guest is emulated, which takes a minute or two; KERNEL_KVM=1 uses KVM. That is not done
# unasked, because inside some virtual machines KVM is there and a guest never gets to its kernel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

forebay=${FOREBAY:-$(target_dir)/release/forebay}
package=${KERNEL_PACKAGE:-linux-image-6.12-amd64}
cache=${KERNEL_CACHE:-$(target_dir)/kernel-test}
timeout_seconds=900
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
[[ $(uname -m) == x86_64 ]] || fail "this test knows only x86_64"
PATH=$PATH:/usr/sbin:/sbin
need qemu-system-x86_64=qemu-system-x86 busybox=busybox-static depmod=kmod xz=xz-utils \
  cpio=cpio mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs nbd-client=nbd-client

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# fetch_kernel: the unpacked kernel package in $cache. Nothing is installed on this machine.
fetch_kernel() {
  local real
  [[ -e $cache/complete ]] && return
  say "fetching $package"
  rm -rf "$cache"
  mkdir -p "$cache"
  real=$(apt-cache depends "$package" |
    sed -n '/Depends: linux-image-[0-9]/{s/.*Depends: //p;q}')
  [[ -n $real ]] || fail "no package $package: name another with KERNEL_PACKAGE"
  (cd "$cache" && apt-get download -qq "$real" 2>/dev/null && dpkg -x ./*.deb . && rm ./*.deb)
  touch "$cache/complete"
}

# add_program FILE [NAME]: with the libraries that it is linked with.
add_program() {
  local library
  install_file "$(command -v "$1")" "$dir/guest/bin/${2:-$(basename "$1")}"
  while read -r library; do
    [[ -e $dir/guest$library ]] || install_file "$library" "$dir/guest$library"
  done < <(ldd "$(command -v "$1")" 2>/dev/null | grep -o '/[^ ]*' || true)
}

install_file() { mkdir -p "$(dirname "$2")" && cp -L "$1" "$2"; }

# add_modules NAME...: with what they depend on, unpacked, because busybox knows no xz.
add_modules() {
  local release name file
  release=$(basename "$cache"/lib/modules/*)
  depmod -b "$cache" "$release"
  for name in "$@"; do
    while read -r file; do
      install_file "$file" "$dir/guest${file#"$cache"}"
    done < <(modprobe -d "$cache" -S "$release" --show-depends "$name" |
      sed -n 's/^insmod \([^ ]*\).*/\1/p')
  done
  find "$dir/guest/lib/modules" -name '*.xz' -exec xz -d {} +
  cp "$cache/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} \
    "$dir/guest/lib/modules/$release/"
  depmod -b "$dir/guest" "$release"
}

pack() {
  say "packing the guest"
  mkdir -p "$dir/guest"/{bin,dev,proc,sys,mnt,tmp,data}
  cp "$(command -v busybox)" "$dir/guest/bin/busybox"
  cp scripts/kernel-guest.sh "$dir/guest/init"
  chmod +x "$dir/guest/init"
  add_program "$forebay" forebay
  local program
  for program in nbd-client mkfs.ext4 e2fsck mkfs.xfs xfs_repair; do add_program "$program"; done
  add_modules crc32c_generic nbd ext4 xfs
  # Something real to copy: about eight megabytes of this machine's files.
  { find /usr/share /usr/lib -xdev -type f -readable -size +3k -size -64k 2>/dev/null || true; } |
    sed 800q | tar --create --files-from=- 2>/dev/null | tar --extract --directory="$dir/guest/data"
  (cd "$dir/guest" && find . | cpio --quiet -o -H newc | gzip -1) >"$dir/initrd"
}

boot() {
  local options=(-machine q35 -m 3G -smp 1 -nographic -no-reboot -nic none)
  if [[ -n ${KERNEL_KVM:-} ]]; then options+=(-enable-kvm -cpu host); else options+=(-cpu max); fi
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  timeout "$timeout_seconds" qemu-system-x86_64 "${options[@]}" \
    -kernel "$cache"/boot/vmlinuz-* -initrd "$dir/initrd" \
    -append "console=ttyS0 quiet panic=-1" </dev/null 2>&1 | tr -d '\r' | tee "$dir/console"
}

fetch_kernel
pack
boot || fail "the guest did not end by itself within $timeout_seconds s"
grep -qx 'guest: all passed' "$dir/console" || fail "the guest did not pass: see above"
