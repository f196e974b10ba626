#!/bin/busybox sh
# Init process of the guest that scripts/stress.sh boots. Reports progress on the console; the last
# line "guest: all passed" means success.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin MDADM_NO_UDEV=1 MDADM_NO_SYSTEMCTL=1

say() { echo "guest: $*"; }
finish() {
  status=$?
  [ "$status" = 0 ] || {
    say "failed with $status"
    tail -n 40 /tmp/server.log /run/forebay-devices/*.log /tmp/*.out || true
    dmesg | tail -40
  }
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
mkdir -p /dev/shm /run/mdadm /mnt/array /mnt/plain /mnt/state
mount -t tmpfs tmpfs /tmp
mount -t tmpfs -o size=95% tmpfs /dev/shm
say "Linux $(uname -r)"
for module in crc32c_generic virtio_pci virtio_blk raid456 ext4 xfs; do modprobe "$module"; done
rounds=$(setting rounds)
seconds=$(setting seconds)
driver=$(setting driver)

# disk SERIAL: the device of that serial number.
disk() {
  for block in /sys/block/vd*; do
    [ "$(cat "$block/serial")" != "$1" ] || { echo "/dev/${block##*/}"; return; }
  done
  give_up "there is no disk $1"
}
mdadm --create /dev/md0 --run --level=5 --raid-devices=4 --chunk=64 --assume-clean \
  "$(disk array1)" "$(disk array2)" "$(disk array3)" "$(disk array4)" >/tmp/mdadm.out 2>&1
journal=$(disk journal)
plain=$(disk plain)
# A journal needs a state directory that outlives a reboot.
mkfs.ext4 -q -F "$(disk state)"
mount -t ext4 "$(disk state)" /mnt/state

serve() {
  forebay serve --keeper yes --background full \
    --volume "array=/dev/md0,mode=write-back,protection=journal,journal=$journal" \
    --volume "plain=$plain" \
    --nbd unix:/tmp/nbd.sock --memory 96MiB --state /mnt/state >>/tmp/server.log 2>&1 &
  keeper=$!
  # Memory is short on purpose, and the kernel would choose the largest process.
  echo -1000 >"/proc/$keeper/oom_score_adj"
}
pid() {
  forebay status --json --state /mnt/state 2>/dev/null |
    sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p'
}
# wait_for_other PID: another server than this one serves.
wait_for_other() {
  tries=0
  until now=$(pid) && [ -n "$now" ] && [ "$now" != "$1" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || give_up "no server serves"
    sleep 0.1
  done
}

serve
wait_for_other 0
for name in array plain; do
  forebay attach "$name" --as "$driver" --state /mnt/state || give_up "cannot attach $name"
done
# With TRIM, which is the default of both.
mkfs.ext4 -q -F /dev/forebay/array || give_up "mkfs.ext4 failed"
mkfs.xfs -q -f /dev/forebay/plain || give_up "mkfs.xfs failed"
mount -t ext4 /dev/forebay/array /mnt/array
mount -t xfs /dev/forebay/plain /mnt/plain

# load NAME: programs that write and read back until told to stop.
load() {
  number=0
  while [ ! -e /tmp/stop ]; do
    number=$((number + 1))
    if [ -e /bin/fsx ]; then
      fsx -N 400 -l 2000000 -S "$((number * 7))" "/mnt/$1/fsx" >"/tmp/fsx.$1.out" 2>&1 ||
        { touch /tmp/failed; exit 1; }
    fi
    if [ -e /bin/fsstress ]; then
      rm -rf "/mnt/$1/stress"
      mkdir "/mnt/$1/stress"
      fsstress -d "/mnt/$1/stress" -p 2 -n 60 -s "$number" >"/tmp/fsstress.$1.out" 2>&1 ||
        { touch /tmp/failed; exit 1; }
    fi
    fio --directory="/mnt/$1" --name=verify --rw=randwrite --bsrange=512-128k --size=8m \
      --ioengine=psync --direct="$((number % 2))" --verify=crc32c --randseed="$number" \
      >"/tmp/fio.$1.out" 2>&1 || { touch /tmp/failed; exit 1; }
    echo "$number" >"/tmp/count.$1"
  done
}
count() { cat /tmp/count.* 2>/dev/null | awk '{ all += $1 } END { print all + 0 }'; }
# wait_for_load: each program has run again after this.
wait_for_load() {
  from=$(count)
  tries=0
  until [ "$(count)" -ge $((from + 2)) ]; do
    [ ! -e /tmp/failed ] || give_up "a program has failed"
    tries=$((tries + 1))
    [ "$tries" -lt 3000 ] || give_up "nothing is written any more"
    sleep 0.1
  done
}

loads=
for name in array plain; do
  load "$name" &
  loads="$loads $!"
done
wait_for_load
round=0
while [ "$round" -lt "$rounds" ]; do
  round=$((round + 1))
  old=$(pid)
  kill -9 "$old"
  wait_for_other "$old"
  sleep 2
  old=$(pid)
  forebay upgrade --state /mnt/state >/tmp/upgrade.out 2>&1 || give_up "an upgrade failed"
  wait_for_other "$old"
  sleep 2
  # The journal has what the pool loses now.
  old=$(pid)
  kill -9 "$keeper" "$old"
  sleep 1
  serve
  wait_for_other "$old"
  wait_for_load
  say "round $round: killed, upgraded, killed with the keeper; $(count) runs so far"
done

say "$seconds s of short memory"
echo 60 >/proc/sys/vm/dirty_ratio
echo 50 >/proc/sys/vm/dirty_background_ratio
available() { sed -n 's/MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo; }
hog=0
# hold: takes memory that nothing frees, until 40 MiB are left.
hold() {
  while [ "$(available)" -gt 40000 ]; do
    head -c 8388608 /dev/urandom >"/dev/shm/hog$hog" 2>/dev/null || return 0
    hog=$((hog + 1))
  done
}
end=$(($(date +%s) + seconds))
least=$(available)
while [ "$(date +%s)" -lt "$end" ]; do
  hold
  now=$(available)
  [ "$now" -ge "$least" ] || least=$now
  before=$(count)
  tries=0
  # Progress is slow, but there is some.
  until [ "$(count)" -gt "$before" ] || [ "$(date +%s)" -ge "$end" ]; do
    [ ! -e /tmp/failed ] || give_up "a program has failed"
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || give_up "nothing is written any more: memory is short"
    sleep 0.5
  done
done
say "$(count) runs so far, with $hog pieces of 8 MiB held, and at least $least KiB available"
rm -f /dev/shm/hog*
wait_for_load
touch /tmp/stop
for load in $loads; do wait "$load" || give_up "a program has failed"; done
[ ! -e /tmp/failed ] || give_up "a program has failed"
if dmesg | grep -E "I/O error|Remounting|shut down|corrupt|hung_task|blocked for more"; then
  give_up "kernel errors"
fi

say "unmounting, and reading the disks without the server"
for name in array plain; do
  rm -rf "/mnt/$name/stress"
  head -c 20000000 /dev/urandom >"/mnt/$name/last"
  sha256sum <"/mnt/$name/last" >"/tmp/sum.$name"
done
fstrim -v /mnt/plain || give_up "cannot trim"
umount /mnt/array /mnt/plain
for name in array plain; do forebay detach "$name" || give_up "cannot detach $name"; done
forebay stop --state /mnt/state >/tmp/stop.out 2>&1 || give_up "the server does not stop"
wait "$keeper" || true
e2fsck -fn /dev/md0 >/tmp/check.out 2>&1 || give_up "ext4 is damaged"
xfs_repair -n "$plain" >/tmp/check.out 2>&1 || give_up "XFS is damaged"
mount -t ext4 -o ro /dev/md0 /mnt/array
mount -t xfs -o ro "$plain" /mnt/plain
for name in array plain; do
  [ "$(sha256sum <"/mnt/$name/last")" = "$(cat "/tmp/sum.$name")" ] || give_up "$name lacks data"
done
umount /mnt/array /mnt/plain
mdadm --stop /dev/md0 >/dev/null 2>&1
say "all passed"
