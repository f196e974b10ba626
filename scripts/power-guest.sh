#!/bin/busybox sh
# The init process of the guest that scripts/power.sh boots and cuts off. It checks what
# the cut before has left of two file systems, says what is there, and writes until it is cut off
# itself. What it says for the judge goes to /dev/hvc0, which has taken a line when `echo` ends;
# messages for humans go to the console.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin

say() { echo "guest: $*"; }
report() { echo "$*" >&3; }
finish() {
  status=$?
  [ "$status" = 0 ] || { report "failed $status"; say "failed with $status"; dmesg | tail -30; }
  poweroff -f
  # The machine powers off first. If init exited, the kernel would panic.
  sleep 60
}
trap finish EXIT

# setting NAME: from the kernel's command line.
setting() { sed -n "s/.*forebay_$1=\([^ ]*\).*/\1/p" /proc/cmdline; }

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /tmp
for module in virtio_pci virtio_net virtio_console crc32c_generic nbd ext4; do
  modprobe "$module"
done
tries=0
until [ -c /dev/hvc0 ] && [ -e /sys/class/net/eth0 ]; do
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || { say "a device is missing"; exit 1; }
  sleep 0.1
done
# Kept open, because the last close resets it.
exec 3<>/dev/hvc0
stty raw -echo <&3
ifconfig lo 127.0.0.1
ifconfig eth0 10.0.2.15
port=$(setting port)
task=$(setting task)
report "booted"

# Has a volume checked: the file system's journal is replayed, then nothing may be wrong, then the
# sums of all files are reported.
check() {
  e2fsck -y -E journal_only "$2" >/tmp/replay.log 2>&1 || [ $? -le 1 ] ||
    { cat /tmp/replay.log; report "replay $1"; exit 1; }
  e2fsck -fn "$2" >/tmp/check.log 2>&1 || { cat /tmp/check.log; report "fsck $1"; exit 1; }
  mount -t ext4 "$2" "/mnt/$1"
  (cd "/mnt/$1" && find . -type f -exec sha256sum {} +) | while read -r found name; do
    report "found $1/${name#./} $found"
  done
}

# begin KIND NAME SUM, then synced NAME SUM: what is about to happen to a file, and what is done
# and durable. The judge knows what may be there in between.
write_file() {
  report "begin write $1 $sum"
  dd if="/tmp/new.$2" of="/mnt/$1" bs=4k conv=fsync 2>/dev/null
  report "synced $1 $sum"
}
replace_file() {
  dd if="/tmp/new.$2" of="/mnt/$1.new" bs=4k conv=fsync 2>/dev/null
  report "begin replace $1 $sum"
  mv "/mnt/$1.new" "/mnt/$1"
  fsync "$(dirname "/mnt/$1")"
  report "synced $1 $sum"
}
remove_file() {
  report "begin remove $1 none"
  rm -f "/mnt/$1"
  fsync "$(dirname "/mnt/$1")"
  report "synced $1 none"
}

# A writer of its own directory of a volume, until the power is cut. Every round has its own way
# through the same thirty names.
writer() {
  at=$1/w$2
  mkdir -p "/mnt/$at"
  number=$(($2 * 1000 + $(setting seed)))
  while :; do
    number=$((number * 5 % 8191 + 7))
    dd if=/dev/urandom of="/tmp/new.$1$2" bs=512 count=$((1 + number % 90)) 2>/dev/null
    sum=$(sha256sum "/tmp/new.$1$2")
    sum=${sum%% *}
    name=$at/f$((number % 30))
    case $((number % 7)) in
      0 | 1 | 2) write_file "$name" "$1$2" ;;
      3 | 4 | 5) replace_file "$name" "$1$2" ;;
      *) remove_file "$name" ;;
    esac
  done
}

device=0
for volume in ack flush; do
  tries=0
  until nbd-client 10.0.2.2 "$port" "/dev/nbd$device" -name "$volume" >/tmp/nbd.log 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 20 ] || { cat /tmp/nbd.log; exit 1; }
    sleep 0.5
  done
  mkdir -p "/mnt/$volume"
  [ "$task" != make ] || mkfs.ext4 -F -q "/dev/nbd$device"
  check "$volume" "/dev/nbd$device"
  device=$((device + 1))
done
report "checked"
if [ "$task" = last ]; then
  umount /mnt/ack /mnt/flush
  nbd-client -d /dev/nbd0
  nbd-client -d /dev/nbd1
  report "unmounted"
  exit 0
fi
for volume in ack flush; do
  for number in 1 2; do writer "$volume" "$number" & done
done
report "loading"
wait
