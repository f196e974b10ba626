#!/bin/busybox sh
# Init process of the guest that scripts/md-peers.sh boots. For each contender in /data/settings it
# creates a RAID 5 of null_blk disks, puts the contender on it, set up anew for each measurement,
# and prints the result in the format of scripts/md-peers.awk. "guest: all measured" means success.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin MDADM_NO_UDEV=1 MDADM_NO_SYSTEMCTL=1 DM_DISABLE_UDEV=1

say() { echo "guest: $*"; }
finish() {
  status=$?
  if [ "$status" != 0 ]; then
    say "failed with $status"
    tail -n 20 /tmp/log /tmp/fio /tmp/server.log || true
    dmesg | tail -30
  fi
  poweroff -f
  # The machine powers off meanwhile; if init exited, the kernel would panic.
  sleep 60
}
trap finish EXIT

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /run/mdadm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
contenders='' disk_ms=5 disk_kib=1280 cache_mib=64 forebay_memory='' attach=ublk
# shellcheck source=/dev/null
. /data/settings
modprobe null_blk nr_devices=0
# The first one has md's checksums; md does not declare it as a dependency.
for module in crc32c_generic raid456 bcache dm_writecache dm_cache dm_cache_smq; do
  modprobe "$module"
done
mount -t configfs configfs /sys/kernel/config
say "Linux $(uname -r)"

# --- The array.

# disk NUMBER: a disk of 64 MiB that does one request of up to disk_kib at a time, and takes
# disk_ms for each.
disk() {
  config=/sys/kernel/config/nullb/nullb$1
  [ -d "$config" ] || mkdir "$config"
  # Drops its content and frees its memory.
  [ "$(cat "$config/power")" = 0 ] || echo 0 >"$config/power"
  echo 64 >"$config/size"
  echo 4096 >"$config/blocksize"
  echo 1 >"$config/memory_backed"
  echo 2 >"$config/queue_mode"
  echo 2 >"$config/irqmode"
  echo "$((disk_ms * 1000000))" >"$config/completion_nsec"
  echo 1 >"$config/hw_queue_depth"
  echo 1 >"$config/submit_queues"
  echo "$((disk_kib * 2))" >"$config/max_sectors"
  echo 1 >"$config/power"
  # Requests wait in the disk's queue, so that they do not block md.
  queue=/sys/block/nullb$1/queue
  echo mq-deadline >"$queue/scheduler"
  echo 512 >"$queue/nr_requests"
  echo 512 >"$queue/iosched/async_depth"
  echo 0 >"$queue/wbt_lat_usec"
}

# make_array: 15 disks in RAID 5 with chunks of 8 KiB at /dev/md0.
make_array() {
  members=
  number=0
  while [ "$number" -lt 15 ]; do
    disk "$number"
    members="$members /dev/nullb$number"
    number=$((number + 1))
  done
  # shellcheck disable=SC2086
  mdadm --create /dev/md0 --level=5 --raid-devices=15 --chunk=8 --assume-clean --bitmap=none \
    --metadata=1.2 --run --force $members >/tmp/log 2>&1
  echo 0 >/sys/block/md0/md/safe_mode_delay
}

stop_array() { mdadm --stop /dev/md0 >/tmp/log 2>&1; }

# forget: empties the array's stripe cache.
forget() {
  echo 17 >/sys/block/md0/md/stripe_cache_size
  echo 256 >/sys/block/md0/md/stripe_cache_size
}

# fresh_ram: two RAM disks of cache_mib, empty.
fresh_ram() {
  modprobe -r brd >/dev/null 2>&1 || true
  modprobe brd rd_nr=2 rd_size="$((cache_mib * 1024))"
}

# --- The contenders: setup_X sets `device`, clean_X returns when all is on the array, and drop_X
# takes it away.

setup_bare() { device=/dev/md0; }
clean_bare() { :; }
drop_bare() { :; }

# setup_forebay [MODE SETTINGS]
setup_forebay() {
  rm -rf /tmp/state
  volume="v=/dev/md0,${1:-mode=write-back,protection=none,accept-loss=yes}"
  forebay serve --volume "$volume" --memory "$forebay_memory" \
    --state /tmp/state >/tmp/server.log 2>&1 &
  server=$!
  tries=0
  until forebay status --state /tmp/state >/tmp/log 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || { say "the server did not start"; exit 1; }
    sleep 0.1
  done
  forebay attach v --as "$attach" --state /tmp/state >/tmp/log 2>&1
  device=/dev/forebay/v
  # The volume is calibrated while it is idle.
  sleep 5
}
# A flush of the device: when it returns, all earlier acknowledged writes are on the disk.
clean_forebay() { dd if=/dev/null of=/dev/forebay/v conv=notrunc,fsync 2>/tmp/log; }
drop_forebay() {
  echo "note $(FOREBAY_STATE=/tmp/state forebay status | tail -n 1)"
  forebay detach v >/tmp/log 2>&1
  kill -TERM "$server"
  wait "$server"
}

setup_through() { setup_forebay mode=write-through; }
clean_through() { clean_forebay; }
drop_through() { drop_forebay; }

setup_bcache() {
  fresh_ram
  dd if=/dev/zero of=/dev/md0 bs=64k count=4 2>/dev/null
  # The data begins with a stripe: 224 sectors.
  make-bcache --wipe-bcache --block 4k --bucket 64k --data_offset 224 --writeback \
    -C /dev/ram0 -B /dev/md0 >/tmp/log 2>&1
  for part in /dev/ram0 /dev/md0; do
    echo "$part" >/sys/fs/bcache/register_quiet 2>/dev/null || true
  done
  until [ -b /dev/bcache0 ] && [ -e /sys/block/bcache0/bcache/cache ]; do sleep 0.1; done
  device=/dev/bcache0
  set_of_bcache=$(readlink -f /sys/block/bcache0/bcache/cache)
  echo 0 >/sys/block/bcache0/bcache/sequential_cutoff
  echo 0 >"$set_of_bcache/congested_read_threshold_us"
  echo 0 >"$set_of_bcache/congested_write_threshold_us"
}
# Detaching first writes everything back, at full speed.
clean_bcache() {
  echo 1 >/sys/block/bcache0/bcache/detach
  until [ "$(cat /sys/block/bcache0/bcache/state)" = "no cache" ]; do sleep 0.05; done
}
drop_bcache() {
  echo 1 >/sys/block/bcache0/bcache/stop
  echo 1 >"$set_of_bcache/stop"
  while [ -e /sys/block/bcache0 ] || [ -e "$set_of_bcache" ]; do sleep 0.1; done
  sleep 1
}

sectors_of_md() { blockdev --getsz /dev/md0; }

# map NAME TABLE: a device of the device mapper, as `device`.
map() {
  dmsetup create "$1" --noudevsync --noudevrules --table "$2" >/tmp/log 2>&1
  device=/dev/dm-0
  [ -b "$device" ] || { say "no $device"; exit 1; }
}

setup_writecache() {
  fresh_ram
  map writecache "0 $(sectors_of_md) writecache s /dev/md0 /dev/ram0 4096 0"
}
clean_writecache() {
  dmsetup message writecache 0 flush
  # Total blocks, free blocks, blocks in flight.
  until dmsetup status writecache | awk '{ exit !($5 == $6) }'; do sleep 0.05; done
}
drop_writecache() { dmsetup remove --noudevsync writecache; }

table_of_dmcache() {
  echo "0 $(sectors_of_md) cache /dev/ram1 /dev/ram0 /dev/md0 128 1 writeback $1 0"
}
setup_dmcache() {
  fresh_ram
  map dmcache "$(table_of_dmcache smq)"
}
clean_dmcache() {
  dmsetup suspend --noudevsync dmcache
  dmsetup reload dmcache --table "$(table_of_dmcache cleaner)"
  dmsetup resume --noudevsync dmcache
  until dmsetup status dmcache | awk '{ exit !($14 == 0) }'; do sleep 0.05; done
}
drop_dmcache() { dmsetup remove --noudevsync dmcache; }

# --- Measuring.

# now: milliseconds.
now() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }

# counters: sectors written to the array, and written and read by its members.
counters() {
  awk '{ printf "%d ", $7 }' /sys/block/md0/stat
  cat /sys/block/nullb*/stat | awk '{ w += $7; r += $3 } END { print w, r }'
}

# run_fio NAME OPTIONS...: with its results in /tmp/fio.
run_fio() {
  fio --name="$1" --filename="$device" --direct=1 --ioengine=libaio --randrepeat=1 \
    --norandommap --output-format=terse --terse-version=3 "$@" >/tmp/fio 2>/tmp/log
}

# measure CONTENDER PHASE ORDER KIB REGION_MIB MIB DEPTH
measure() {
  forget
  "setup_$1"
  rw='write'
  [ "$3" = sequential ] || rw=randwrite
  # Write-through has a constant rate.
  limit=300
  case "$1" in bare | through) limit=20 ;; esac
  before=$(counters)
  run_fio --rw="$rw" --bs="$4k" --size="$5m" --io_size="$6m" --iodepth="$7" --runtime="$limit"
  begin=$(now)
  "clean_$1"
  end=$(now)
  after=$(counters)
  result=$(awk -F ';' '$1 == 3 { print $47, $50 }' /tmp/fio)
  echo "measured $1 $2 $3 $4 $5 $7 $result $((end - begin)) $before $after"
  "drop_$1"
}

# percentiles: of the reads in /tmp/fio: median and 99 %, in microseconds, and how many.
percentiles() {
  awk -F ';' '$1 == 3 {
    for (i = 18; i <= 37; i++) {
      split($i, p, "=")
      if (p[1] == "50.000000%") median = p[2]
      if (p[1] == "99.000000%") high = p[2]
    }
    print median, high, $6 / 4
  }' /tmp/fio
}

# reads CONTENDER: random uncached reads, idle, and during writeback.
reads() {
  forget
  "setup_$1"
  run_fio --rw=randread --bs=4k --offset=512m --size=112m --iodepth=1 --number_ios=400
  idle=$(percentiles)
  if [ "$1" != bare ] && [ "$1" != through ]; then
    run_fio --rw=randwrite --bs=4k --size=256m --io_size="$((cache_mib * 3 / 4))m" --iodepth=16
  fi
  before=$(counters)
  run_fio --rw=randread --bs=4k --offset=640m --size=240m --iodepth=1 --runtime=15 --time_based
  after=$(counters)
  echo "latency $1 $idle $(percentiles) $before $after"
  "clean_$1"
  "drop_$1"
}

# hits CONTENDER: random reads of 32 MiB that have been written and read.
hits() {
  forget
  "setup_$1"
  run_fio --rw=write --bs=64k --size=32m
  for _ in 1 2 3; do run_fio --rw=read --bs=64k --size=32m; done
  line="hits $1"
  for depth in 1 16; do
    run_fio --rw=randread --bs=4k --size=32m --iodepth="$depth" --runtime=3 --time_based
    line="$line $(percentiles)"
  done
  echo "$line"
  "clean_$1"
  "drop_$1"
}

for contender in $contenders; do
  make_array
  while read -r order kib region burst sustained depth; do
    case "$order" in
      '' | '#'*) continue ;;
      latency) reads "$contender" </dev/null ;;
      hits) hits "$contender" </dev/null ;;
      stripes) [ "$contender" != bare ] ||
        measure bare stripes sequential "$kib" "$region" "$burst" "$depth" </dev/null ;;
      *)
        measure "$contender" burst "$order" "$kib" "$region" "$burst" "$depth" </dev/null
        measure "$contender" sustained "$order" "$kib" "$region" "$sustained" "$depth" </dev/null
        ;;
    esac
  done </data/cases
  stop_array
done
say "all measured"
