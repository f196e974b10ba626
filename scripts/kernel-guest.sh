#!/bin/busybox sh
# Init process of the guest that scripts/kernel.sh boots. Reports progress on the console; the last
# line "guest: all passed" means success.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin

say() { echo "guest: $*"; }
finish() {
  status=$?
  [ "$status" = 0 ] || { say "failed with $status"; cat /tmp/server.log; dmesg | tail -30; }
  sync
  poweroff -f
  # The machine powers off meanwhile; if init exited, the kernel would panic.
  sleep 60
}
trap finish EXIT

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /tmp
say "Linux $(uname -r)"
# The first one has the checksums of the file systems, which do not declare it as a dependency.
for module in crc32c_generic nbd ext4 xfs; do modprobe "$module"; done

disk=/tmp/disk.img
truncate -s 512M "$disk"
forebay serve --volume "v=$disk,mode=write-back,protection=none,accept-loss=yes" \
  --nbd unix:/tmp/nbd.sock --memory 64MiB --state /tmp/state >/tmp/server.log 2>&1 &
server=$!
tries=0
until [ -S /tmp/nbd.sock ]; do
  tries=$((tries + 1))
  [ "$tries" -lt 600 ] || { say "the server did not start"; exit 1; }
  sleep 0.1
done
nbd-client -unix /tmp/nbd.sock /dev/nbd0 -name v
[ "$(blockdev --getsize64 /dev/nbd0)" = 536870912 ] || { say "the size is wrong"; exit 1; }

# A writer in its own directory: copies, overwrites, deletes, and keeps the checksums of the rest.
writer() {
  mkdir "/mnt/w$1"
  cp -r /data "/mnt/w$1/copy"
  dd if=/dev/urandom of="/mnt/w$1/random" bs=64k count=200 conv=fsync 2>/dev/null
  dd if=/dev/urandom of="/mnt/w$1/random" bs=4k count=300 seek=77 conv=notrunc,fsync 2>/dev/null
  dd if=/dev/urandom of="/mnt/w$1/direct" bs=1M count=8 oflag=direct 2>/dev/null
  find "/mnt/w$1/copy" -type f | awk 'NR % 3 == 0' | xargs rm
  cp -r /data "/mnt/w$1/again"
  find "/mnt/w$1" -type f -exec sha256sum {} + >"/tmp/sums.$1"
}

# try NAME MAKE CHECK: a file system on the device, used, checked and read back from the server.
try() {
  say "$1: creating it"
  $2 /dev/nbd0 >/tmp/make.log 2>&1 || { cat /tmp/make.log; exit 1; }
  mount -t "$1" /dev/nbd0 /mnt
  say "$1: four writers"
  writers=
  for number in 1 2 3 4; do
    writer "$number" &
    writers="$writers $!"
  done
  for pid in $writers; do wait "$pid"; done
  say "$1: trimming"
  fstrim /mnt
  umount /mnt
  # Drop the kernel's own cache.
  blockdev --flushbufs /dev/nbd0
  echo 3 >/proc/sys/vm/drop_caches
  say "$1: checking it"
  $3 /dev/nbd0 >/tmp/check.log 2>&1 || { cat /tmp/check.log; exit 1; }
  mount -t "$1" /dev/nbd0 /mnt
  cat /tmp/sums.* | sha256sum -c >/tmp/verify.log 2>&1 || { grep -v OK /tmp/verify.log; exit 1; }
  say "$1: $(wc -l </tmp/verify.log) files as they were written"
  umount /mnt
}

try xfs "mkfs.xfs -f" "xfs_repair -n"
try ext4 "mkfs.ext4 -F -q" "e2fsck -fn"

say "stopping the server: the file behind it is a whole file system"
nbd-client -d /dev/nbd0
kill -TERM "$server"
wait "$server"
e2fsck -fn "$disk" >/tmp/check.log 2>&1 || { cat /tmp/check.log; exit 1; }
if dmesg | grep -iE 'i/o error|corrupt|call trace'; then
  say "the kernel log has errors"
  exit 1
fi
say "all passed"
