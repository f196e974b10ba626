#!/bin/busybox sh
# Init process of the guest that scripts/attach.sh boots. Reports progress on the console; the last
# line "guest: all passed" means success.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin

say() { echo "guest: $*"; }
finish() {
  status=$?
  [ "$status" = 0 ] || {
    say "failed with $status"
    tail -n 40 /tmp/server.log /run/forebay-devices/*.log
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
mkdir -p /dev/shm /run /mnt/ext4 /mnt/xfs
mount -t tmpfs tmpfs /tmp
say "Linux $(uname -r)"
# The first one has the checksums of the file systems, which do not declare it as a dependency.
for module in crc32c_generic ext4 xfs; do modprobe "$module"; done
rounds=$(setting rounds)
driver=$(setting driver)
# The second device and those after it are made by the kernel as they are needed.
mkdir -p /etc/modprobe.d
echo "options nbd nbds_max=1" >/etc/modprobe.d/nbd.conf

for name in ext4 xfs; do truncate -s 400M "/tmp/$name.img"; done
serve() {
  forebay serve --keeper yes --background full \
    --volume ext4=/tmp/ext4.img,mode=write-back,protection=none,accept-loss=yes \
    --volume xfs=/tmp/xfs.img \
    --nbd unix:/tmp/nbd.sock --memory 96MiB --state /tmp/state >>/tmp/server.log 2>&1 &
  keeper=$!
}
pid() {
  forebay status --json --state /tmp/state 2>/dev/null |
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
# refused COMMAND...: the command fails, with an error.
refused() {
  if "$@" 2>/tmp/error; then give_up "not refused: $*"; fi
  say "refused: $(cat /tmp/error)"
}
refused forebay attach nothing --state /tmp/state
# The attach loads the driver that it needs.
modules=$(echo /lib/modules/*/kernel/drivers)
mv "$modules/block" /tmp/block
refused forebay attach ext4 --state /tmp/state
grep -q "ublk.*nbd" /tmp/error || give_up "not both drivers are named"
mv /tmp/block "$modules/block"
if [ "$driver" = nbd ]; then
  refused forebay attach ext4 --as ublk --state /tmp/state
  refused forebay attach ext4 --queues 2 --state /tmp/state
  grep -q "one queue" /tmp/error || give_up "the wrong error"
fi
for name in ext4 xfs; do
  forebay attach "$name" --state /tmp/state || give_up "cannot attach $name"
done
refused forebay attach ext4 --state /tmp/state
forebay devices
forebay devices --json | grep -q "\"driver\": \"$driver\"" || give_up "another driver is used"
[ "$(blockdev --getsize64 /dev/forebay/ext4)" = 419430400 ] || give_up "the size is wrong"

mkfs.ext4 -q -F /dev/forebay/ext4 || give_up "mkfs.ext4 failed"
mkfs.xfs -q -f /dev/forebay/xfs || give_up "mkfs.xfs failed"
mount -t ext4 /dev/forebay/ext4 /mnt/ext4
mount -t xfs /dev/forebay/xfs /mnt/xfs
refused forebay detach ext4

# A writer writes files of random content, and reads each back past the kernel's cache. The checksum
# is taken before the file is written.
writer() {
  number=0
  longest=0
  while [ ! -e /tmp/stop ]; do
    number=$((number + 1))
    begun=$(hundredths)
    head -c $((4096 * (1 + number % 60))) /dev/urandom >"/tmp/source.$2"
    sum=$(sha256sum <"/tmp/source.$2")
    file="/mnt/$1/file.$2.$((number % 40))"
    dd if="/tmp/source.$2" of="$file" bs=64k conv=fsync 2>"/tmp/dd.$2" ||
      { cat "/tmp/dd.$2"; touch /tmp/failed; exit 1; }
    dd if="$file" of="/tmp/copy.$2" bs=64k iflag=direct 2>"/tmp/dd.$2" ||
      { cat "/tmp/dd.$2"; touch /tmp/failed; exit 1; }
    if [ "$(sha256sum <"/tmp/copy.$2")" != "$sum" ]; then
      say "$file is not as it was written"
      touch /tmp/failed
      exit 1
    fi
    echo "$sum $file" >"/tmp/sums.$2.$((number % 40))"
    echo "$number" >"/tmp/count.$2"
    took=$(($(hundredths) - begun))
    [ "$took" -le "$longest" ] || { longest=$took && echo "$took" >"/tmp/longest.$2"; }
  done
}
# children PID: the processes that it has started.
children() {
  grep -l "^PPid:[^0-9]*$1\$" /proc/[0-9]*/status 2>/dev/null | sed 's,/proc/\([0-9]*\)/.*,\1,'
}
# hundredths: the time since the boot, in hundredths of a second.
hundredths() { sed 's/^\([0-9]*\)\.\([0-9]*\) .*/\1\2/' /proc/uptime; }
count() { cat /tmp/count.* 2>/dev/null | awk '{ all += $1 } END { print all + 0 }'; }
# counted WRITER: the files that it has written.
counted() { sed -n 's/^\([0-9][0-9]*\)$/\1/p' "/tmp/count.$1" 2>/dev/null | grep . || echo 0; }
# wait_for_load: each writer goes on, so each device is served. Linux 6.16 to 7.0.9 cannot end a
# server that is killed while it takes over a device: some of its commands are never cancelled.
wait_for_load() {
  for writing in 1 x1 2 x2; do
    from=$(counted "$writing")
    tries=0
    until [ "$(counted "$writing")" -ge $((from + 2)) ]; do
      [ ! -e /tmp/failed ] || give_up "a request failed"
      tries=$((tries + 1))
      [ "$tries" -lt 1200 ] || give_up "nothing is written any more"
      sleep 0.1
    done
  done
}

writers=
for number in 1 2; do
  writer ext4 "$number" &
  writers="$writers $!"
  writer xfs "x$number" &
  writers="$writers $!"
done
wait_for_load
round=0
while [ "$round" -lt "$rounds" ]; do
  round=$((round + 1))
  old=$(pid)
  kill -9 "$old"
  wait_for_other "$old"
  wait_for_load
  say "round $round: killed, $(count) files so far"
  old=$(pid)
  forebay upgrade --state /tmp/state >/tmp/upgrade.log 2>&1 || { cat /tmp/upgrade.log; exit 1; }
  wait_for_other "$old"
  wait_for_load
  say "round $round: upgraded, $(count) files so far"
done

# kill_watcher NAME: the process that gives the volume's device to the next server.
kill_watcher() {
  watcher=
  for process in /proc/[0-9]*; do
    if tr '\000' ' ' 2>/dev/null <"$process/cmdline" | grep -q "attach --foreground $1"; then
      watcher=${process#/proc/}
    fi
  done
  kill -9 "$watcher" || give_up "there is no watcher"
}
# wait_for_line NUMBER: the log of a device has so many lines of a server.
wait_for_line() {
  tries=0
  until [ "$(grep -c "served again" "/run/forebay-devices/$2.log")" -ge "$1" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || give_up "$2 is not served again"
    sleep 0.1
  done
}
grep -h "served again" /run/forebay-devices/*.log | sed 's/^/guest: /'
say "the longest writes took, in hundredths of a second: $(cat /tmp/longest.* | tr '\n' ' ')"

say "killing the watcher of a device, whose server goes on"
kill_watcher ext4
sleep 1
forebay devices | grep -q 'ext4.*live, not watched' || { forebay devices; give_up "not seen"; }
forebay attach ext4 --state /tmp/state || give_up "cannot continue to attach"
# The log begins anew. A connection has to be replaced, so that its end is seen; a ublk device not.
[ "$driver" = ublk ] || wait_for_line 1 ext4
wait_for_load
if [ "$driver" = nbd ]; then
  say "disconnecting the clients, whose server goes on"
  lines=$(grep -c "served again" /run/forebay-devices/ext4.log)
  for id in $(forebay clients --json --state /tmp/state | sed -n 's/^ *"id": \([0-9]*\),$/\1/p')
  do
    forebay clients disconnect "$id" --state /tmp/state
  done
  wait_for_line $((lines + 1)) ext4
  wait_for_load
fi

# The process that gives the device to the next server may end, too.
say "killing the watcher of a device, and the server"
kill_watcher ext4
old=$(pid)
kill -9 "$old"
wait_for_other "$old"
forebay devices | grep -q 'ext4.*waiting, not watched' || { forebay devices; give_up "not seen"; }
forebay attach ext4 --state /tmp/state || give_up "cannot continue to attach"
wait_for_load

say "growing a disk under a file system with load"
size() { blockdev --getsize64 /dev/forebay/ext4; }
# can_grow: whether devices of the driver become larger; those of ublk since Linux 6.16.
can_grow() {
  [ "$driver" = nbd ] || [ "$(uname -r | awk -F. '{ print $1 * 1000 + $2 }')" -ge 6016 ]
}
grow_file_system() {
  resize2fs /dev/forebay/ext4 >/tmp/resize.log 2>&1 || { cat /tmp/resize.log; exit 1; }
}
truncate -s 480M /tmp/ext4.img
forebay volume resize ext4 --state /tmp/state >/tmp/resized || give_up "the volume does not grow"
sed 's/^/guest: /' /tmp/resized
if can_grow; then
  # The command has waited for the device.
  grep -q "has grown with it" /tmp/resized || give_up "the device does not grow"
  [ "$(size)" = 503316480 ] || give_up "the device has $(size) bytes"
  grow_file_system
  wait_for_load
  # What is recorded is what keeps the device from a server with a smaller disk.
  tries=0
  until grep -q 503316480 /run/forebay-devices/ext4.json; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || give_up "the size is not recorded"
    sleep 0.1
  done
  old=$(pid)
  kill -9 "$old"
  wait_for_other "$old"
  wait_for_load
  old=$(pid)
  forebay upgrade --state /tmp/state >/tmp/upgrade.log 2>&1 || { cat /tmp/upgrade.log; exit 1; }
  wait_for_other "$old"
  wait_for_load
  [ "$(size)" = 503316480 ] || give_up "the device has $(size) bytes after an upgrade"
else
  grep -q "6.16 or later, and this is Linux $(uname -r): detach the volume" /tmp/resized ||
    give_up "no reason is given"
  tries=0
  until grep "ublkb0 keeps its size" /run/forebay-devices/ext4.log; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || give_up "the watcher gives no reason"
    sleep 0.1
  done
  [ "$(size)" = 419430400 ] || give_up "the device has $(size) bytes"
  wait_for_load
fi

touch /tmp/stop
for pid in $writers; do wait "$pid" || give_up "a writer has failed"; done
[ ! -e /tmp/failed ] || give_up "a request failed"
# Each file is still what was written last: no write of an ended server came later.
for sums in /tmp/sums.*; do
  read -r sum _ file <"$sums"
  dd if="$file" of=/tmp/copy bs=64k iflag=direct 2>/dev/null || give_up "cannot read $file"
  [ "$(sha256sum </tmp/copy | cut -d' ' -f1)" = "$sum" ] || give_up "$file is older than it was"
done
if dmesg | grep -E "I/O error|Remounting|shut down|corrupt"; then give_up "kernel errors"; fi

if ! can_grow; then
  umount /mnt/ext4
  forebay detach ext4 || give_up "cannot detach ext4"
  forebay attach ext4 --state /tmp/state || give_up "cannot attach ext4 again"
  [ "$(size)" = 503316480 ] || give_up "the device has $(size) bytes"
  mount -t ext4 /dev/forebay/ext4 /mnt/ext4
  grow_file_system
fi
old=$(pid)
kill -9 "$old"
wait_for_other "$old"
head -c 8388608 /dev/urandom >/tmp/source
dd if=/tmp/source of=/mnt/ext4/grown bs=1M conv=fsync 2>/dev/null || give_up "cannot write"
df -m /mnt/ext4 | sed 's/^/guest: /'

say "unmounting, detaching, and reading the images"
fstrim /mnt/ext4
umount /mnt/ext4 /mnt/xfs
e2fsck -fn /dev/forebay/ext4 >/tmp/check.log 2>&1 || { cat /tmp/check.log; exit 1; }
xfs_repair -n /dev/forebay/xfs >/tmp/check.log 2>&1 || { cat /tmp/check.log; exit 1; }
for name in ext4 xfs; do
  forebay detach "$name" || give_up "cannot detach $name"
  [ ! -e "/dev/forebay/$name" ] || give_up "the device is still there"
done
forebay devices
forebay stop --state /tmp/state >/tmp/stop.log 2>&1 || { cat /tmp/stop.log; exit 1; }
wait "$keeper" || true

say "a server of another user, killed together with its keeper"
truncate -s 64M /tmp/other.img
mkdir /tmp/other
chown 1000 /tmp/other.img /tmp/other
serve_other() {
  set-user --reuid 1000 --clear-groups forebay serve --keeper yes \
    --volume other=/tmp/other.img --nbd unix:/tmp/other/nbd.sock --memory 64MiB \
    --state /tmp/other >>/tmp/server.log 2>&1 &
  keeper=$!
}
serve_other
tries=0
until forebay attach other --state /tmp/other 2>/tmp/error; do
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || { cat /tmp/error; give_up "cannot attach a volume of another user's"; }
  sleep 0.2
done
head -c 8388608 /dev/urandom >/tmp/source
dd if=/tmp/source of=/dev/forebay/other bs=1M oflag=direct 2>/dev/null
# shellcheck disable=SC2046
kill -9 "$keeper" $(children "$keeper")
dd if=/dev/forebay/other of=/tmp/copy bs=1M count=8 iflag=direct 2>/tmp/dd.other &
reader=$!
sleep 3
forebay devices | grep -q 'other.*waiting' || { forebay devices; give_up "no device waits"; }
refused forebay detach other
# A server with another disk of that name does not get the device.
sed 's/other.img/wrong.img/' /init | sed -n '/^serve_other() {/,/^}/p' >/tmp/wrong.sh
truncate -s 32M /tmp/wrong.img
chown 1000 /tmp/wrong.img
# shellcheck disable=SC1091
(. /tmp/wrong.sh && serve_other && echo "$keeper" >/tmp/wrong.pid)
sleep 8
grep 'has another disk' /run/forebay-devices/other.log | sed 's/^/guest: /'
forebay devices | grep -q 'other.*waiting' || { forebay devices; give_up "another disk is served"; }
wrong=$(cat /tmp/wrong.pid)
# shellcheck disable=SC2046
kill -9 "$wrong" $(children "$wrong")
sleep 1
serve_other
wait "$reader" || { cat /tmp/dd.other; give_up "a read failed"; }
cmp /tmp/source /tmp/copy || give_up "acknowledged data is lost"
# shellcheck disable=SC2046
kill -9 "$keeper" $(children "$keeper")
sleep 1
forebay detach other --force || give_up "cannot remove a device that waits"
[ ! -e /dev/forebay/other ] || give_up "the device is still there"

# slow_disk: requests that take longer than the kernel waits before it examines them. None fails, no
# connection is replaced while the server is alive, and one that was in flight when it was killed is
# repeated. The server has a TCP port only.
slow_disk() {
  say "a disk whose requests take 5 seconds, over TCP"
  ifconfig lo 127.0.0.1 up
  truncate -s 64M /tmp/slow.img
  serve_slow() {
    forebay serve --keeper no --volume "slow=delay(read=5s,write=5s):/tmp/slow.img,mode=bypass" \
      --nbd tcp:127.0.0.1:10809 --memory 64MiB --state /tmp/slow >>/tmp/server.log 2>&1 &
    keeper=$!
  }
  serve_slow
  forebay attach slow --wait 60 --state /tmp/slow || give_up "cannot attach a slow volume"
  dd if=/tmp/source of=/dev/forebay/slow bs=64k count=4 oflag=direct 2>/dev/null ||
    give_up "a slow write failed"
  if grep "served again" /run/forebay-devices/slow.log; then give_up "it was served anew"; fi
  dmesg | grep -c "Possible stuck request" | sed 's/^/guest: examined requests: /'
  dd if=/tmp/source of=/dev/forebay/slow bs=64k skip=4 seek=4 count=1 oflag=direct 2>/tmp/dd.slow &
  writer=$!
  sleep 2
  kill -9 "$keeper"
  sleep 1
  serve_slow
  wait "$writer" || { cat /tmp/dd.slow; give_up "a write in flight failed"; }
  grep "served again" /run/forebay-devices/slow.log | sed 's/^/guest: /'
  dd if=/dev/forebay/slow of=/tmp/copy bs=64k count=5 iflag=direct 2>/dev/null
  head -c 327680 /tmp/source | cmp - /tmp/copy || give_up "a slow write is lost"
  forebay detach slow || give_up "cannot detach a slow volume"
  kill "$keeper"
}

say "a device that gives up after two seconds without a server"
serve_other
tries=0
until forebay attach other --give-up-after 2 --state /tmp/other 2>/tmp/error; do
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || { cat /tmp/error; give_up "cannot attach again"; }
  sleep 0.2
done
# shellcheck disable=SC2046
kill -9 "$keeper" $(children "$keeper")
if dd if=/dev/forebay/other of=/dev/null bs=1M count=8 iflag=direct 2>/dev/null; then
  give_up "a read without a server succeeded"
fi
tries=0
while [ -e /dev/forebay/other ]; do
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || give_up "the device is still there"
  sleep 0.1
done
grep 'no server for' /run/forebay-devices/other.log | sed 's/^/guest: /'
[ "$driver" = ublk ] || slow_disk
say "$(count) files were written and read back"
say "all passed"
