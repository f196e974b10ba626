#!/usr/bin/env bash
# A file system on a volume, through nbdfuse and a loop device, under stress in one mode; the pool
# is a sixteenth of the disk. The files of four writers are checksummed, and compared after the
# caches are dropped; then fsck checks the file behind the server.
#
#   scripts/filesystem.sh MODE IO
#
# Needs root (it mounts) and /dev/fuse. MODE and IO are as in scripts/clients.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

mode=${1:?usage: filesystem.sh MODE IO}
io=${2:?usage: filesystem.sh MODE IO}
forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release first"
need nbdfuse=libnbd-bin fusermount3=fuse3 mkfs.ext4=e2fsprogs fio=fio

dir=$(mktemp -d)
socket=$dir/nbd.sock
server=
loop=
clean() {
  if mountpoint -q "$dir/mnt"; then umount "$dir/mnt" || true; fi
  if [[ -n $loop ]]; then losetup -d "$loop" || true; fi
  if mountpoint -q "$dir/fuse"; then fusermount3 -u "$dir/fuse" || true; fi
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  rm -rf "$dir"
}
trap clean EXIT
mkdir "$dir/mnt" "$dir/fuse"
truncate -s 512M "$dir/disk.img"
options="mode=$mode"
if [[ $mode == write-back ]]; then options+=",protection=none,accept-loss=yes"; fi
"$forebay" serve --volume "v=$dir/disk.img,$options" --nbd "unix:$socket" --memory 32MiB \
  --io "$io" --state "$dir/state" >"$dir/log" 2>&1 &
server=$!
wait_for_socket "$socket" "$server" || { cat "$dir/log"; fail "the server did not start"; }

attach() {
  nbdfuse "$dir/fuse/disk" "nbd+unix:///v?socket=$socket" &
  local tries=0
  until [[ -e $dir/fuse/disk ]]; do
    tries=$((tries + 1))
    ((tries < 100)) || fail "nbdfuse did not mount"
    sleep 0.1
  done
  loop=$(losetup -f --show "$dir/fuse/disk")
}

detach() {
  losetup -d "$loop"
  loop=
  fusermount3 -u "$dir/fuse"
}

writer() {
  local at=$dir/mnt/w$1
  mkdir "$at"
  cp -r /usr/share/perl "$at/copy" 2>/dev/null || cp -r /etc "$at/copy"
  dd if=/dev/urandom of="$at/random" bs=64k count=160 conv=fsync status=none
  dd if=/dev/urandom of="$at/random" bs=4k count=300 seek=77 conv=notrunc,fsync status=none
  find "$at/copy" -type f | awk 'NR % 3 == 0' | tr '\n' '\0' | xargs -0 rm
  cp -r "$at/copy" "$at/again"
  find "$at" -type f -exec sha256sum {} + >"$dir/sums.$1"
}

say "$mode, $io: making an ext4 file system through nbdfuse and a loop device"
attach
mkfs.ext4 -q -F "$loop"
mount "$loop" "$dir/mnt"
say "$mode, $io: four writers and fio with verification"
writers=()
for number in 1 2 3 4; do
  writer "$number" &
  writers+=($!)
done
(cd "$dir" && fio --name=verify --filename="$dir/mnt/fio" --size=48M --rw=randwrite --bs=4k \
  --ioengine=psync --verify=crc32c --verify_state_save=0 --fsync=64 --output="$dir/fio.log")
for pid in "${writers[@]}"; do wait "$pid"; done
umount "$dir/mnt"
detach
say "$mode, $io: attached again, checked and compared"
attach
e2fsck -fn "$loop" >"$dir/check.log" 2>&1 || { cat "$dir/check.log"; fail "fsck complains"; }
mount "$loop" "$dir/mnt"
cat "$dir"/sums.* | sha256sum --quiet -c - || fail "files are not as they were written"
say "$mode, $io: $(cat "$dir"/sums.* | wc -l) files as they were written"
umount "$dir/mnt"
detach
kill -TERM "$server"
wait "$server" || { cat "$dir/log"; fail "the server did not stop cleanly"; }
server=
if ! e2fsck -fn "$dir/disk.img" >"$dir/check.log" 2>&1; then
  cat "$dir/check.log"
  fail "fsck complains about the file behind the server"
fi
