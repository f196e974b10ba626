#!/usr/bin/env bash
# Builds the Debian packages, checks them with lintian and piuparts, and installs, uses, removes and
# purges them in a Debian 12, in a chroot and then booted under QEMU.
#
#   scripts/package.sh [build | chroot | guest]...
#
# Needs root, for mmdebstrap, except for `build` alone. The packages go to PACKAGES
# (target/packages). The programs are those of the release build, which is made, or of the directory
# FOREBAY_PROGRAMS; if that is empty, the package builds its own. DEBIAN_MIRROR is where Debian's
# packages are fetched, and PACKAGE_CACHE keeps the system for the chroot between runs.
# scripts/service.sh has the settings of the guest.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

packages=${PACKAGES:-$(target_dir)/packages}
programs=${FOREBAY_PROGRAMS-$(target_dir)/release}
suite=${SERVICE_SUITE:-bookworm}
base=${PACKAGE_CACHE:-$(target_dir)/package-test}-$suite.tar
[[ $(id -u) == 0 || $* == build ]] || fail "mmdebstrap needs root"
need dpkg-buildpackage=dpkg-dev dh=debhelper lintian=lintian mmdebstrap=mmdebstrap man=man-db \
  cmake=cmake piuparts=piuparts
version=$(dpkg-parsechangelog -SVersion)
next=$version+next
arch=$(dpkg --print-architecture)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'say "failed: $BASH_COMMAND" >&2' ERR

# build: the packages, of a copy of the tree, and one of a later version with the same content.
build() {
  local name
  mkdir -p "$dir/tree/forebay" "$packages"
  git ls-files -z | tar -c --null --files-from=- | tar -x -C "$dir/tree/forebay"
  if [[ -z ${FOREBAY_PROGRAMS+set} ]]; then
    need_rust
    say "building the programs"
    cargo build --quiet --release --locked --package forebay --package forebay-lab --bins
  fi
  if [[ -n $programs ]]; then
    for name in forebay forebay-lab; do
      [[ -x $programs/$name ]] || fail "$programs/$name does not exist"
    done
    programs=$(realpath "$programs")
  fi
  say "building the packages"
  (cd "$dir/tree/forebay" && unset CARGO_TARGET_DIR && FOREBAY_PROGRAMS=$programs \
    dpkg-buildpackage -us -uc -b >"$dir/log" 2>&1) || { tail -n 40 "$dir/log"; fail "no package"; }
  rm -f "$packages"/forebay*
  cp "$dir"/tree/forebay*.{deb,changes,buildinfo} "$packages"
  dpkg-deb -R "$packages/forebay_${version}_$arch.deb" "$dir/next"
  sed -i "s/^Version: .*/Version: $next/" "$dir/next/DEBIAN/control"
  dpkg-deb --root-owner-group -b "$dir/next" "$packages/forebay_${next}_$arch.deb" >/dev/null
  (cd "$packages" && ls -sh ./*.deb)
  say "lintian"
  lintian --fail-on error --allow-root "$packages/forebay_${version}_$arch.changes"
}

# inside COMMAND...: in the system, where services are not started.
inside() { chroot "$dir/system" "$@"; }

unpack_base() {
  if [[ ! -e $base ]]; then
    say "fetching Debian $suite"
    mmdebstrap --quiet --format=tar --variant=minbase \
      --include=systemd,udev,man-db,bash-completion,perl "$suite" "$base.new" \
      ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
    mv "$base.new" "$base"
  fi
  mkdir -p "$dir/system/packages"
  tar -x -f "$base" -C "$dir/system"
  mount -t proc proc "$dir/system/proc"
  trap 'umount "$dir/system/proc"; rm -rf "$dir"' EXIT
}

# check_files: what the package says that it has.
check_files() {
  local file
  for file in /usr/bin/forebay /usr/lib/sysusers.d/forebay.conf /usr/lib/tmpfiles.d/forebay.conf \
    /etc/forebay/forebay.toml /usr/share/doc/forebay/examples/forebay.toml \
    /usr/share/doc/forebay/copyright /usr/share/doc/forebay/NOTICES.gz \
    /usr/share/man/man1/forebay-volume-set.1.gz /usr/share/man/man5/forebay.toml.5.gz \
    /usr/share/bash-completion/completions/forebay /usr/bin/forebay-lab \
    /usr/share/man/man1/forebay-lab-replay.1.gz; do
    [[ -e $dir/system$file ]] || fail "$file is missing"
  done
  inside test -e /lib/udev/rules.d/60-forebay.rules
  [[ $(inside stat -c '%U %G %a' /etc/forebay/forebay.toml) == 'root forebay 640' ]]
  [[ $(readlink "$dir/system/run/forebay") == /var/lib/forebay ]]
  inside grep -q 'disk:.*forebay' /etc/group
  if grep /usr/local "$dir/system"/lib/{systemd/system/forebay*,udev/rules.d/60-forebay.rules}; then
    fail "the packages name a program that they do not have"
  fi
}

# check_use: program, manual, completions, units.
check_use() {
  inside forebay serve --check --config /etc/forebay/forebay.toml --state /tmp/check
  [[ $(inside man -P cat forebay) == *forebay-serve* ]]
  [[ $(inside man -P cat 5 forebay.toml) == *write-back-age* ]]
  # shellcheck disable=SC2016
  inside bash -c '. /usr/share/bash-completion/bash_completion
    _completion_loader forebay; COMP_WORDS=(forebay vol); COMP_CWORD=1
    "$(complete -p forebay | sed "s/.*-F \([^ ]*\).*/\1/")" forebay vol forebay
    [[ ${COMPREPLY[*]} == volume ]]' || fail "the completion of bash does not complete"
  inside systemd-analyze verify forebay.service forebay.socket forebay-attach@x.service ||
    fail "systemd refuses a unit"
  inside udevadm verify /lib/udev/rules.d/60-forebay.rules 2>/dev/null || true
}

# remove_and_purge: the state goes only if it has no records of journals and no files of others.
remove_and_purge() {
  local state=$dir/system/var/lib/forebay
  mkdir -p "$state/drills"
  touch "$state"/{lock,statistics.totals,warm-0.list,drills/1.json,journal-1.relied}
  inside apt-get -qq -y remove forebay forebay-lab >"$dir/log" 2>&1
  [[ ! -e $dir/system/usr/bin/forebay && -e $dir/system/etc/forebay/forebay.toml ]]
  inside dpkg --purge forebay forebay-lab >"$dir/log" 2>&1
  grep -q 'forebay: /var/lib/forebay is kept' "$dir/log"
  [[ -e $state/journal-1.relied && ! -e $dir/system/etc/forebay ]]
  rm "$state/journal-1.relied"
  inside apt-get -qq -y install /packages/forebay.deb >"$dir/log" 2>&1
  inside apt-get -qq -y purge forebay >"$dir/log" 2>&1
  [[ ! -e $state ]]
}

chroot_test() {
  unpack_base
  cp "$packages/forebay_${version}_$arch.deb" "$dir/system/packages/forebay.deb"
  cp "$packages/forebay-lab_${version}_$arch.deb" "$dir/system/packages/lab.deb"
  inside apt-get -qq -y install /packages/forebay.deb /packages/lab.deb >"$dir/log" 2>&1 ||
    { cat "$dir/log"; fail "the packages are not installed"; }
  say "installed in a chroot"
  check_files
  check_use
  say "used"
  remove_and_purge
  say "removed and purged"
  say "piuparts"
  gzip -1 <"$base" >"$dir/base.tar.gz"
  piuparts --basetgz "$dir/base.tar.gz" --distribution "$suite" --no-upgrade-test \
    --no-eatmydata --warn-on-leftovers-after-purge --warn-on-others --log-level error \
    "$packages/forebay_${version}_$arch.deb" "$packages/forebay-lab_${version}_$arch.deb" \
    >"$dir/log" 2>&1 || { tail -n 40 "$dir/log"; fail "piuparts has objections"; }
}

guest() {
  scripts/service.sh "$packages/forebay_${version}_$arch.deb" \
    "$packages/forebay_${next}_$arch.deb"
}

if ((!$#)); then set -- build chroot guest; fi
for part in "$@"; do
  case $part in
    build | guest) "$part" ;;
    chroot) chroot_test ;;
    *) fail "no part '$part'" ;;
  esac
done
