# Shared by the scripts that boot a Debian kernel under QEMU: the kernel, and the content of the
# guest's initramfs. Source it in bash, after common.sh. The guest has no disk; its files are at
# $dir/guest, and $dir is the script's own temporary directory.
#
# KERNEL_PACKAGE selects another kernel package, and KERNEL_CACHE a directory that keeps it between
# runs.
# shellcheck shell=bash

# Created by the script.
dir=
package=${KERNEL_PACKAGE:-linux-image-6.12-amd64}
cache=${KERNEL_CACHE:-$(target_dir)/kernel-test}
# On a busy machine an emulated timer may stand still for as long as the kernel checks it, and the
# kernel panics: "IO-APIC + timer doesn't work".
# shellcheck disable=SC2034
kernel_options="console=ttyS0 quiet panic=-1 no_timer_check"

# need_qemu: installs the emulator and the tools that pack a guest.
need_qemu() {
  [[ $(uname -m) == x86_64 ]] || fail "this test knows only x86_64"
  PATH=$PATH:/usr/sbin:/sbin
  need qemu-system-x86_64=qemu-system-x86 busybox=busybox-static depmod=kmod xz=xz-utils \
    cpio=cpio
}

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

# add_modules NAME...: with their dependencies, unpacked, because busybox lacks xz.
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

# begin_guest INIT: a guest whose first process is that script.
begin_guest() {
  mkdir -p "$dir/guest"/{bin,dev,proc,sys,mnt,tmp,data}
  cp "$(command -v busybox)" "$dir/guest/bin/busybox"
  cp "$1" "$dir/guest/init"
  chmod +x "$dir/guest/init"
}

# end_guest: packs it into $dir/initrd.
end_guest() {
  (cd "$dir/guest" && find . | cpio --quiet -o -H newc | gzip -1) >"$dir/initrd"
}

# qemu_command: sets the array `command`, which boots the guest. KERNEL_KVM=1 uses KVM. KVM is not
# the default, because in some virtual machines it exists, but a guest never reaches its kernel.
qemu_command() {
  command=(qemu-system-x86_64 -machine q35 -m "${guest_memory:-3G}" -smp 1 -no-reboot)
  if [[ -n ${KERNEL_KVM:-} ]]; then command+=(-enable-kvm -cpu host); else command+=(-cpu max); fi
  command+=(-kernel "$cache"/boot/vmlinuz-* -initrd "$dir/initrd")
}

# show_console: copies what the guest prints to this script's output and to $dir/console, line by
# line.
show_console() { sed -u 's/\r//g' | tee "$dir/console"; }

# expect_passed: ends the script with an error, unless the guest has passed.
expect_passed() {
  grep -qx 'guest: all passed' "$dir/console" || fail "the guest did not pass: see above"
}
