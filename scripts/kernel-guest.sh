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
forebay serve --background full --volume "v=$disk,mode=write-back,protection=none,accept-loss=yes" \
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

# counter NAME: a counter of the volume.
counter() {
  forebay status --json --state /tmp/state | sed -n "s/^ *\"$1\": \([0-9]*\),*\$/\1/p" | head -1
}

# pinned_bytes STATE: waits until the volume's pins have this state, and prints their bytes.
pinned_bytes() {
  tries=0
  until forebay status --json --state /tmp/state | grep -A1 '"pins": {' | grep -q "\"$1\""; do
    tries=$((tries + 1))
    if [ "$tries" -ge 600 ]; then
      say "the pins are not $1"
      forebay status --state /tmp/state
      exit 1
    fi
    sleep 0.1
  done
  forebay status --json --state /tmp/state | sed -n 's/^ *"pinned_bytes": \([0-9]*\),*$/\1/p' |
    tail -1
}

# pin_a_file NAME MAKE: a file on a file system is pinned, and its reads stay hits while ten times
# the pool is read. Direct I/O shows each read to the server. Then the file moves, and is deleted.
pin_a_file() {
  say "$1: pinning a file"
  $2 /dev/nbd0 >/tmp/make.log 2>&1 || { cat /tmp/make.log; exit 1; }
  mount -t "$1" -o noatime /dev/nbd0 /mnt
  dd if=/dev/urandom of=/mnt/file bs=1M count=8 conv=fsync 2>/dev/null
  dd if=/dev/urandom of=/mnt/file bs=64k count=8 seek=200 conv=notrunc,fsync 2>/dev/null
  sum=$(sha256sum </mnt/file)
  forebay pin v /mnt/file --state /tmp/state
  [ "$(pinned_bytes loaded)" = 8912896 ] || { say "other bytes are pinned"; exit 1; }
  pool=$(forebay status --json --state /tmp/state | sed -n 's/^ *"pool_bytes": \([0-9]*\),*$/\1/p')
  turns=$((10 * pool / 64 / 1048576 + 1))
  # The file's own map is in memory from here on.
  dd if=/mnt/file of=/dev/null bs=128k iflag=direct 2>/dev/null
  turn=0
  while [ "$turn" -lt "$turns" ]; do
    dd if=/dev/nbd0 of=/dev/null bs=1M count=64 skip=$((turn * 64 % 448)) iflag=direct 2>/dev/null
    misses=$(($(counter read_misses) + $(counter read_partial_hits)))
    hits=$(counter read_hits)
    dd if=/mnt/file of=/tmp/copy bs=128k iflag=direct 2>/dev/null
    misses=$(($(counter read_misses) + $(counter read_partial_hits) - misses))
    hits=$(($(counter read_hits) - hits))
    if [ "$misses" != 0 ] || [ "$hits" -lt 68 ]; then
      say "$misses reads of the pinned file missed, $hits hit"
      exit 1
    fi
    [ "$(sha256sum </tmp/copy)" = "$sum" ] || { say "the file is not as it was written"; exit 1; }
    turn=$((turn + 1))
  done
  say "$1: $turns times 64 MiB went by a pool of $pool bytes, and each read of the file was a hit"

  forebay unpin v /mnt/file --state /tmp/state
  forebay pin v /mnt/file --follow=1 --state /tmp/state >/tmp/follow 2>&1 &
  follower=$!
  [ "$(pinned_bytes loaded)" = 8912896 ] || { say "the followed file is not pinned"; exit 1; }
  dd if=/dev/urandom of=/mnt/new bs=1M count=3 conv=fsync 2>/dev/null
  mv /mnt/new /mnt/file
  tries=0
  until [ "$(pinned_bytes loaded)" = 3145728 ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || { say "the pins do not follow"; cat /tmp/follow; exit 1; }
    sleep 0.1
  done
  rm /mnt/file
  if wait "$follower"; then
    say "the command does not report that the file was deleted"
    exit 1
  fi
  grep -q 'No such file or directory' /tmp/follow || { cat /tmp/follow; exit 1; }
  [ "$(pinned_bytes none)" = 0 ] || { say "ranges of a deleted file are pinned"; exit 1; }
  say "$1: the pins followed the file until it was deleted"
  umount /mnt
}

pin_a_file xfs "mkfs.xfs -f"
pin_a_file ext4 "mkfs.ext4 -F -q"

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
