#!/bin/busybox sh
# Init process of the guest that scripts/vhost.sh boots, whose disks are volumes over vhost-user.
# Reports progress on the console; the last line "guest: all passed" means success.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin

say() { echo "guest: $*"; }
finish() {
  status=$?
  [ "$status" = 0 ] || {
    say "failed with $status"
    dmesg | tail -30
  }
  sync
  poweroff -f
  # The machine powers off meanwhile; if init exited, the kernel would panic.
  sleep 60
}
trap finish EXIT
give_up() { say "$*"; exit 1; }

# setting NAME: from the kernel's command line.
setting() { sed -n "s/.*forebay_$1=\([^ ]*\).*/\1/p" /proc/cmdline; }

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /run /mnt/ext4
mount -t tmpfs tmpfs /tmp
say "Linux $(uname -r)"
for module in crc32c_generic virtio_pci virtio_blk ext4; do modprobe "$module"; done
seconds=$(setting seconds)
for disk in vda vdb; do [ -b /dev/$disk ] || give_up "$disk is missing"; done
serial=$(cat /sys/block/vda/serial)
[ "$serial" = raw ] || give_up "the disk is named '$serial'"
queue=/sys/block/vda/queue
say "vda: $(cat /sys/block/vda/size) sectors, blocks of $(cat $queue/logical_block_size)" \
  "and $(cat $queue/physical_block_size), cache '$(cat $queue/write_cache)'," \
  "$(echo /sys/block/vda/mq/*/ | wc -w) queues, discard of $(cat $queue/discard_max_bytes)"

mkfs.ext4 -q -E nodiscard /dev/vdb
mount -o discard /dev/vdb /mnt/ext4
say "ready"

# One kind of write after another, each read back: short and long ones, from one ring and several.
fio --filename=/dev/vda --direct=1 --ioengine=libaio --verify=crc32c --verify_backlog=64 \
  --time_based --runtime="$seconds" --randrepeat=0 --minimal \
  --name=short --rw=randwrite --bs=4k --iodepth=16 --offset=0 --size=64m \
  --name=sectors --rw=randwrite --bs=512 --iodepth=4 --offset=64m --size=8m \
  --name=long --rw=randwrite --bs=1m --iodepth=2 --offset=80m --size=96m \
  --name=mixed --rw=randwrite --bsrange=4k-256k --iodepth=8 --offset=180m --size=60m \
  >/tmp/fio.log 2>&1 &
verify=$!
round=0
end=$(($(date +%s) + seconds))
while [ "$(date +%s)" -lt "$end" ]; do
  round=$((round + 1))
  head -c 2000000 /dev/urandom >/tmp/data
  cp /tmp/data "/mnt/ext4/file$((round % 20))" || give_up "a write of ext4 failed"
  sync
  echo 3 >/proc/sys/vm/drop_caches
  cmp /tmp/data "/mnt/ext4/file$((round % 20))" || give_up "ext4 has other data"
  rm -f "/mnt/ext4/file$(((round + 10) % 20))"
done
wait "$verify" || { cat /tmp/fio.log; give_up "the verification has failed"; }
# The host makes the disk larger after its last kill.
wait_for_growth() {
  for _ in $(seq 600); do
    [ "$(cat /sys/block/vda/size)" != 655360 ] || return 0
    sleep 0.1
  done
  give_up "the guest does not see that its disk has grown"
}
wait_for_growth
head -c 1048576 /dev/urandom >/tmp/tail
dd if=/tmp/tail of=/dev/vda bs=4096 seek=$((319 * 256)) oflag=direct 2>/dev/null
dd if=/dev/vda bs=4096 skip=$((319 * 256)) iflag=direct 2>/dev/null | cmp - /tmp/tail ||
  give_up "the new part of the disk has other data"
say "$round files were written and read back"
umount /mnt/ext4
fsck.ext4 -fn /dev/vdb >/tmp/fsck.log 2>&1 || { cat /tmp/fsck.log; give_up "ext4 is damaged"; }
blkdiscard -o 4096 -l 1048576 /dev/vda
[ "$(dd if=/dev/vda bs=4096 skip=1 count=256 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] ||
  give_up "discarded blocks are not zero"
if dmesg | grep -E "I/O error|Remounting|EXT4-fs error"; then give_up "the kernel saw an error"; fi
# The host compares these with the disks from outside.
for disk in vda vdb; do
  say "sum $disk $(dd if=/dev/$disk bs=1M iflag=direct 2>/dev/null | sha256sum | cut -d' ' -f1)"
done
say "all passed"
