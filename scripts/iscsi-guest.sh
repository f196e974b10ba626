#!/bin/busybox sh
# Init process of the guest that scripts/iscsi.sh boots. Reports progress on the console; the last
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
    for log in /tmp/*.log; do
      echo "== $log"
      tail -n 15 "$log"
    done
    dmesg | tail -20
  }
  poweroff -f
  # The machine powers off meanwhile; if init exited, the kernel would panic.
  sleep 60
}
trap finish EXIT
give_up() { say "$*"; exit 1; }

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /run/lock /var/target/pr /etc/iscsi
mount -t tmpfs tmpfs /tmp
say "Linux $(uname -r)"
for module in crc32c_generic configfs target_core_mod target_core_file iscsi_target_mod iscsi_tcp \
  sd_mod; do
  modprobe "$module"
done
mount -t configfs configfs /sys/kernel/config
ip link set lo up
rounds=$(sed -n 's/.*forebay.rounds=\([0-9]*\).*/\1/p' /proc/cmdline)

# wait_for COMMAND...: until it succeeds.
wait_for() {
  tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || give_up "waited in vain for: $*"
    sleep 0.1
  done
}

name=iqn.2026-11.example:disk
target=/sys/kernel/config/target
group=$target/iscsi/$name/tpgt_1
core=$target/core/fileio_0/disk
mkdir -p "$core" "$group/np/127.0.0.1:3260" "$group/lun/lun_0"
truncate -s 256M /tmp/disk.img
echo "fd_dev_name=/tmp/disk.img,fd_dev_size=268435456" >"$core/control"
echo 1 >"$core/enable"
ln -s "$core" "$group/lun/lun_0/disk"
for attribute in authentication=0 generate_node_acls=1 demo_mode_write_protect=0 \
  cache_dynamic_acls=1; do
  echo "${attribute#*=}" >"$group/attrib/${attribute%=*}"
done
echo 1 >"$group/enable"

# The initiator, as docs/recipes/iscsi-disk.md sets it up.
echo root:x:0:0::/:/bin/sh >/etc/passwd
echo "InitiatorName=iqn.2026-11.example:host" >/etc/iscsi/initiatorname.iscsi
cat >/etc/iscsi/iscsid.conf <<EOF
node.session.timeo.replacement_timeout = -1
node.conn[0].timeo.noop_out_interval = 5
node.conn[0].timeo.noop_out_timeout = 5
node.session.queue_depth = 64
EOF
iscsid -f >/tmp/iscsid.log 2>&1 &
wait_for iscsiadm -m discovery -t sendtargets -p 127.0.0.1
iscsiadm -m node -T "$name" -p 127.0.0.1 --login >/tmp/login.log 2>&1 || give_up "no login"
wait_for [ -b /dev/sda ]

forebay serve --keeper no --state /tmp/state --nbd unix:/tmp/nbd --memory 64MiB \
  --volume disk=/dev/sda >/tmp/server.log 2>&1 &
server=$!
wait_for forebay status --state /tmp/state

# job RW...: fio over NBD, with a checksum in each block.
job() {
  fio --name=job --ioengine=nbd --uri="nbd+unix:///disk?socket=/tmp/nbd" --bs=4k --size=32m \
    --iodepth=8 --verify=crc32c --minimal "$@" >/tmp/fio.log 2>&1
}

say "the target is away under load"
job --rw=randwrite --do_verify=0 --time_based --runtime=40 --randrepeat=1 &
load=$!
sleep 8
echo 0 >"$group/enable"
sleep 10
forebay status --state /tmp/state | grep -q stalled ||
  give_up "the status does not say that it waits"
kill -0 "$load" || give_up "the load has ended"
say "while it is away: $(forebay status --state /tmp/state | grep -o 'volume disk: stalled.*' |
  head -n 1)"
echo 1 >"$group/enable"
wait "$load" || { cat /tmp/fio.log; give_up "a request has failed"; }
[ "$(forebay status --json --state /tmp/state | grep -c '"backend_errors": 0')" -ge 1 ] ||
  give_up "the disk has failed I/Os"
job --rw=randwrite --do_verify=1 --randrepeat=0 || { cat /tmp/fio.log; give_up "wrong bytes"; }
say "no request has failed, and all bytes read back"
forebay stop --state /tmp/state >/tmp/stop.log 2>&1 || give_up "no stop"
wait "$server" || give_up "the server has failed"

# reads_kernel DEPTH, reads_libiscsi DEPTH: reads of 4 KiB at random per second.
reads_kernel() {
  fio --name=reads --filename=/dev/sda --ioengine=io_uring --direct=1 --rw=randread --bs=4k \
    --iodepth="$1" --time_based --runtime=10 --output-format=terse 2>/dev/null |
    cut -d ';' -f 8
}
reads_libiscsi() {
  iscsi-perf -i iqn.2026-11.example:other -m "$1" -b 8 -t 10 -r "iscsi://127.0.0.1/$name/0" \
    2>&1 | tr '\r' '\n' | sed -n 's/.*iops average \([0-9]*\).*/\1/p' | tail -n 1
}
# What the measuring program itself can do in this guest.
say "fio without a disk: $(fio --name=none --ioengine=null --size=256m --rw=randread --bs=4k \
  --iodepth=16 --time_based --runtime=5 --output-format=terse 2>/dev/null | cut -d ';' -f 8)"
for round in $(seq "$rounds"); do
  for depth in 1 16 64; do
    say "round $round, depth $depth: kernel $(reads_kernel "$depth"), libiscsi" \
      "$(reads_libiscsi "$depth")"
  done
done
say "all passed"
