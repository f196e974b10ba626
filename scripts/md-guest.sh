#!/bin/busybox sh
# The init process of the guest that scripts/md.sh boots. For each array in
# /data/patterns it makes one of null_blk disks, measures the patterns, and says
# "measured PATTERN RATE", with rates in kB/s; "guest: all measured" reports success.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin MDADM_NO_UDEV=1 MDADM_NO_SYSTEMCTL=1

say() { echo "guest: $*"; }
finish() {
  status=$?
  [ "$status" = 0 ] || { say "failed with $status"; cat /tmp/log || true; dmesg | tail -30; }
  poweroff -f
  # The machine powers off first. If init exited, the kernel would panic.
  sleep 60
}
trap finish EXIT

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /run/mdadm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
modprobe null_blk nr_devices=0
# The first module computes checksums for md; it is not a declared dependency.
for module in crc32c_generic raid0 raid1 raid10 raid456; do modprobe "$module"; done
mount -t configfs configfs /sys/kernel/config
say "Linux $(uname -r)"

# disk NUMBER MS: a disk of 64 MiB that does one request at a time and takes so long for each.
disk() {
  config=/sys/kernel/config/nullb/nullb$1
  [ -d "$config" ] || mkdir "$config"
  [ "$(cat "$config/power")" = 0 ] || echo 0 >"$config/power"
  echo 64 >"$config/size"
  echo 4096 >"$config/blocksize"
  echo 1 >"$config/memory_backed"
  echo 2 >"$config/queue_mode"
  echo 2 >"$config/irqmode"
  echo "$(($2 * 1000000))" >"$config/completion_nsec"
  echo 1 >"$config/hw_queue_depth"
  echo 1 >"$config/submit_queues"
  echo 2560 >"$config/max_sectors"
  echo 1 >"$config/power"
  # Requests wait in the disk's queue, and do not block md while they are submitted.
  queue=/sys/block/nullb$1/queue
  echo mq-deadline >"$queue/scheduler"
  echo 512 >"$queue/nr_requests"
  echo 512 >"$queue/iosched/async_depth"
  echo 0 >"$queue/wbt_lat_usec"
}

# make LEVEL DRIVES CHUNK_KIB DEGRADED MS: an array at /dev/md0, with the first drives missing.
make() {
  members=
  number=0
  while [ "$number" -lt "$2" ]; do
    disk "$number" "$5"
    members="$members /dev/nullb$number"
    number=$((number + 1))
  done
  options="--chunk=$3"
  [ "$1" != raid1 ] || options=
  [ "$1" = raid0 ] || options="$options --assume-clean --bitmap=none"
  # shellcheck disable=SC2086
  mdadm --create /dev/md0 --level="${1#raid}" --raid-devices="$2" $options --metadata=1.2 \
    --run --force $members >/tmp/log 2>&1
  [ ! -e /sys/block/md0/md/safe_mode_delay ] || echo 0 >/sys/block/md0/md/safe_mode_delay
  number=0
  while [ "$number" -lt "$4" ]; do
    # One of each pair, where there are pairs.
    member=$number
    [ "$1" != raid10 ] || member=$((number * 2))
    mdadm /dev/md0 --fail "/dev/nullb$member" >/tmp/log 2>&1
    number=$((number + 1))
  done
}

stop() {
  mdadm --stop /dev/md0 >/tmp/log 2>&1
}

# measure ORDER KIND SIZE_KIB DEPTH COUNT
measure() {
  rw=$2
  [ "$1" = sequential ] || rw=rand$2
  # What the stripe cache knows is forgotten.
  cache=/sys/block/md0/md/stripe_cache_size
  [ ! -e "$cache" ] || { echo 17 >"$cache"; echo 256 >"$cache"; }
  fio --name=md --filename=/dev/md0 --direct=1 --ioengine=libaio --rw="$rw" --bs="$3k" \
    --iodepth="$4" --number_ios="$5" --randrepeat=1 --norandommap --output-format=terse \
    --terse-version=3 >/tmp/fio 2>/tmp/log
  awk -F ';' '$1 == 3 { total = $6 + $47; ms = $9 + $50; printf "%d", total * 1024 / ms }' /tmp/fio
}

made=
while read -r level drives chunk degraded ms order kind size depth count; do
  case "$level" in '' | '#'*) continue ;; esac
  wanted="$level $drives $chunk $degraded $ms"
  if [ "$made" != "$wanted" ]; then
    [ -z "$made" ] || stop
    # shellcheck disable=SC2086
    make $wanted
    made=$wanted
  fi
  rate=$(measure "$order" "$kind" "$size" "$depth" "$count" </dev/null)
  [ "${rate:-0}" -gt 0 ] || { say "no rate for $wanted $order $kind $size $depth"; exit 1; }
  echo "measured $wanted $order $kind $size $depth $count $rate"
done </data/patterns
say "all measured"
