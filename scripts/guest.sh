# Shared by the scripts that boot a Debian kernel under QEMU: the kernel, and the content of the
# guest's initramfs. Source it in bash, after common.sh. The guest has no disk; its files are at
# $dir/guest, and $dir is the script's own temporary directory.
#
# KERNEL_PACKAGE selects another kernel package, KERNEL_SUITE the suite of Debian that has it, if it
# is not one of this machine's, and KERNEL_CACHE a directory that keeps it between runs:
#
#   KERNEL_SUITE=trixie-backports KERNEL_PACKAGE=linux-image-6.17.13+deb13-amd64 KERNEL_CACHE=DIR
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
  local packages file
  [[ -e $cache/complete ]] && return
  say "fetching $package"
  rm -rf "$cache"
  mkdir -p "$cache"
  local apt=()
  [[ -z ${KERNEL_SUITE:-} ]] || read_suite
  # A package without a version names the newest one. Of newer kernels, image and modules are
  # packages of their own.
  mapfile -t packages < <(apt-cache "${apt[@]}" depends --recurse --no-recommends --no-suggests \
    --no-conflicts --no-breaks --no-replaces --no-enhances "$package" 2>/dev/null |
    grep -E '^linux-(image|binary|modules|base)-[0-9]' | sort -u)
  ((${#packages[@]})) ||
    fail "no package $package: name another with KERNEL_PACKAGE, or its suite with KERNEL_SUITE"
  (cd "$cache" && apt-get "${apt[@]}" download -qq "${packages[@]}" 2>/dev/null)
  for file in "$cache"/*.deb; do dpkg -x "$file" "$cache"; done
  rm "$cache"/*.deb
  # Where older packages have them.
  [[ -e $cache/lib ]] || ln -s usr/lib "$cache/lib"
  if [[ ! -e $cache/boot ]]; then
    mkdir "$cache/boot"
    cp "$cache"/lib/modules/*/vmlinuz "$cache/boot/vmlinuz-$(basename "$cache"/lib/modules/*)"
  fi
  touch "$cache/complete"
}

# read_suite: sets the array `apt` to options of apt for packages of another suite of Debian, from
# the archive that this machine uses, with the signature checked.
read_suite() {
  local archive lists=$dir/apt keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  archive=$(apt-get indextargets --format "\$(LABEL) \$(REPO_URI)" "Created-By: Packages" |
    sed -n 's/^Debian //p' | head -n 1)
  [[ -n $archive ]] || fail "this machine has no archive of Debian: unset KERNEL_SUITE"
  mkdir -p "$lists"/{lists,cache/archives}/partial
  echo "deb [signed-by=$keyring] $archive $KERNEL_SUITE main" >"$lists/sources.list"
  apt=(-o Dir::Etc::SourceList="$lists/sources.list" -o Dir::Etc::SourceParts=-
    -o Dir::State::Lists="$lists/lists" -o Dir::Cache="$lists/cache" -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" -o Acquire::Languages=none -qq update ||
    fail "no packages of the suite $KERNEL_SUITE: see above"
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
  local release name file builtin=()
  release=$(basename "$cache"/lib/modules/*)
  depmod -b "$cache" "$release"
  for name in "$@"; do
    if [[ $name == crc32c_generic ]] && ! show_module crc32c_generic >/dev/null 2>&1; then
      # Newer kernels have these checksums built in, without a module.
      builtin+=(kernel/lib/crc32c_generic.ko)
      continue
    fi
    while read -r file; do
      install_file "$file" "$dir/guest${file#"$cache"}"
    done < <(show_module "$name" | sed -n 's/^insmod \([^ ]*\).*/\1/p')
  done
  find "$dir/guest/lib/modules" -name '*.xz' -exec xz -d {} +
  cp "$cache/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} \
    "$dir/guest/lib/modules/$release/"
  for file in "${builtin[@]}"; do
    echo "$file" >>"$dir/guest/lib/modules/$release/modules.builtin"
  done
  depmod -b "$dir/guest" "$release"
}

# show_module NAME: the commands that load a module of the kernel.
show_module() { modprobe -d "$cache" -S "$(basename "$cache"/lib/modules/*)" --show-depends "$1"; }

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
