#!/bin/busybox sh
# Init process of the guest that scripts/backings.sh boots. It creates devices that a machine
# rarely has, and compares the server on each of them with the model. For each run it prints
# "begin:", the output of model-client, and "row: NAME MODE END IO STATUS"; "guest: all run" comes
# last.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin MDADM_NO_UDEV=1 MDADM_NO_SYSTEMCTL=1

say() { echo "guest: $*"; }
finish() {
  status=$?
  [ "$status" = 0 ] || { say "failed with $status"; cat /tmp/log || true; dmesg | tail -30; }
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
modprobe virtio_pci
modprobe virtio_blk
modprobe null_blk nr_devices=0
# The first one has md's checksums; md does not declare it as a dependency.
for module in crc32c_generic sd_mod loop raid0 raid1 raid10 raid456 ext4; do
  modprobe "$module"
done
# A journal and the state directory beside it must outlive a reboot.
mount -t ext4 /dev/vda /mnt
mount -t configfs configfs /sys/kernel/config
# The settings of scripts/backings.sh.
operations='' kills='' cuts='' seed='' only='' size='' without=''
# shellcheck source=/dev/null
. /data/settings

# run NAME MODE END IO
run() {
  [ -z "$only" ] || echo "$1 $2 $3 $4" | grep -Eq "$only" || return 0
  over=
  memory=32
  [ "$4" = io_uring ] || memory=64
  case $3 in
    stop) options="--stops 2" ;;
    kill) options="--kills $kills" ;;
    cut) options="--cuts $cuts" over="volatile(keep=0.4):" ;;
  esac
  rm -rf /mnt/server /mnt/journal
  truncate -s 48M /mnt/journal
  echo "begin: $*"
  status=0
  # shellcheck disable=SC2086
  model-client --programs /bin --folder /mnt/server --backing "$over$device" --outside "$device" \
    --mode "$2" --journal "$over/mnt/journal" --io "$4" --memory-mib "$memory" \
    --operations "$operations" --seed "$seed" $without $more $options 2>&1 || status=$?
  [ "$status" = 0 ] || tail -5 /mnt/server/log
  echo "row: $* $status"
}

# rows NAME: the rows of the device $device.
rows() {
  run "$1" write-back kill io_uring
  run "$1" journal kill epoll
  run "$1" journal cut io_uring
  run "$1" write-through stop epoll
  run "$1" bypass stop io_uring
}

# null NUMBER BLOCK_BYTES DISCARD MIB: a disk in memory, at /dev/nullbNUMBER.
null() {
  config=/sys/kernel/config/nullb/nullb$1
  [ -d "$config" ] || mkdir "$config"
  [ "$(cat "$config/power")" = 0 ] || echo 0 >"$config/power"
  echo "$4" >"$config/size"
  echo "$2" >"$config/blocksize"
  echo 1 >"$config/memory_backed"
  echo "$3" >"$config/discard"
  # Answers in another order than the requests.
  echo 2 >"$config/queue_mode"
  echo 1 >"$config/power"
}

# on_null NAME BLOCK_BYTES DISCARD
on_null() {
  null 0 "$2" "$3" "$size"
  device=/dev/nullb0
  more=
  rows "$1"
  echo 0 >/sys/kernel/config/nullb/nullb0/power
}

# on_scsi NAME PARAMETER...: a disk of scsi_debug.
on_scsi() {
  name=$1
  shift
  if ! modprobe scsi_debug "dev_size_mb=$size" delay=0 "$@" >/tmp/log 2>&1; then
    echo "skip: $name scsi_debug does not take $*: $(tail -1 /tmp/log)"
    return
  fi
  tries=0
  device=
  until [ -n "$device" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { say "no disk appeared for $*"; exit 1; }
    sleep 0.1
    for found in /sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/*; do
      [ ! -e "$found" ] || device=/dev/$(basename "$found")
    done
  done
  say "$name: logical $(cat "/sys/block/${device#/dev/}/queue/logical_block_size")," \
    "physical $(cat "/sys/block/${device#/dev/}/queue/physical_block_size")," \
    "alignment $(cat "/sys/block/${device#/dev/}/alignment_offset")," \
    "discard $(cat "/sys/block/${device#/dev/}/queue/discard_max_bytes")," \
    "zeroes $(cat "/sys/block/${device#/dev/}/queue/write_zeroes_max_bytes")"
  rows "$name"
  rmmod scsi_debug
}

# on_md NAME LEVEL DISKS BLOCK_BYTES: an array, of disks of its own.
on_md() {
  members=
  number=1
  while [ "$number" -le "$3" ]; do
    null "$number" "$4" 1 24
    members="$members /dev/nullb$number"
    number=$((number + 1))
  done
  options="--chunk=16"
  [ "$2" != raid1 ] || options=
  [ "$2" = raid0 ] || options="$options --assume-clean --bitmap=none"
  # shellcheck disable=SC2086
  mdadm --create /dev/md0 --level="${2#raid}" --raid-devices="$3" $options --metadata=1.2 \
    --run --force $members >/tmp/log 2>&1
  more=
  device=/dev/md0
  rows "$1"
  mdadm --stop /dev/md0 >/tmp/log 2>&1
  number=1
  while [ "$number" -le "$3" ]; do
    echo 0 >"/sys/kernel/config/nullb/nullb$number/power"
    number=$((number + 1))
  done
}

say "Linux $(uname -r)"
on_null null-512 512 1
on_null null-4096 4096 1
on_null null-4096-no-discard 4096 0
more=
on_scsi scsi-512-no-discard
on_scsi scsi-512e physblk_exp=3 lbpu=1
on_scsi scsi-512e-offset physblk_exp=3 lowest_aligned=7 lbpu=1
on_scsi scsi-4kn sector_size=4096 lbpu=1
on_scsi scsi-4kn-16k sector_size=4096 physblk_exp=2 lbpu=1
on_scsi scsi-4kn-write-same sector_size=4096 lbpws=1 lbpws10=1
on_scsi scsi-512-write-same lbpws=1 lbpws10=1
# A trim of a part of a unit leaves the disk's content, which can be older than that of the pool.
more="--trim-leaves-anything"
on_scsi scsi-unmap-coarse lbpu=1 unmap_granularity=16 unmap_alignment=3
# Trimmed sectors do not read as zeroes.
on_scsi scsi-512-not-zeroes lbpu=1 lbprz=0
on_scsi scsi-4kn-not-zeroes sector_size=4096 lbpu=1 lbprz=0
# When the disk itself writes zeroes, it loses their checksums.
more="--without=zero"
on_scsi scsi-dif dif=1 dix=1
on_scsi scsi-4kn-dif sector_size=4096 dif=1 dix=1
more=
on_md md-raid1-4096 raid1 2 4096
on_md md-raid0-512 raid0 2 512
on_md md-raid5-512 raid5 4 512
on_md md-raid5-4096 raid5 4 4096
on_md md-raid10-4096 raid10 4 4096
if dmesg | grep -iE 'i/o error|call trace|protection error'; then
  say "the kernel log has errors"
  exit 1
fi
say "all run"
