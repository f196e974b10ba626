#!/usr/bin/env bash
# Runs a command of this tree with the programs of another Debian release, because newer clients
# find what those of this machine do not.
#
#   scripts/suite.sh SUITE COMMAND...
#
# Such as `scripts/suite.sh trixie scripts/clients.sh write-back io_uring`. The release is unpacked
# at the first use, into SUITE_CACHE. The command sees this tree at its place, and what it needs is
# installed in that release. Needs root, for debootstrap and chroot. DEBIAN_MIRROR selects where
# packages are fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

suite=${1:?usage: suite.sh SUITE COMMAND...}
shift
(($#)) || fail "no command"
cache=${SUITE_CACHE:-$(target_dir)/suite-test}-$suite
[[ $(id -u) == 0 ]] || fail "debootstrap and chroot need root"
need debootstrap=debootstrap unshare=util-linux

if [[ ! -e $cache/complete ]]; then
  say "fetching Debian $suite"
  rm -rf "$cache"
  mkdir -p "$cache"
  debootstrap --variant=minbase "$suite" "$cache/tree" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} \
    >"$cache/log" || { tail "$cache/log"; fail "debootstrap failed"; }
  touch "$cache/complete"
fi
cp /etc/resolv.conf "$cache/tree/etc/resolv.conf"
mkdir -p "$cache/tree$PWD"
say "$* with the programs of Debian $suite"
# The mounts end with the command.
# shellcheck disable=SC2016
unshare --mount bash -euc '
  tree=$1
  shift
  for at in /dev /proc /sys "$PWD"; do mount --rbind "$at" "$tree$at"; done
  exec chroot "$tree" bash -c "cd \"\$0\" && exec \"\$@\"" "$PWD" "$@"
' suite "$cache/tree" "$@"
