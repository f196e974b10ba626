#!/bin/busybox sh
# Init process of the guest that scripts/reservations.sh boots: two servers on two ports of one
# disk, whose kind the kernel's command line names (forebay.disks). Reports progress on the console;
# the last line "guest: all passed" means success.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin

say() { echo "guest: $*"; }
finish() {
  status=$?
  [ "$status" = 0 ] || {
    say "failed with $status"
    for log in /tmp/*.log /mnt/state/takeovers/*/log; do
      echo "== $log"
      tail -n 15 "$log" || true
    done
    dmesg | tail -20
  }
  sync
  poweroff -f
  # The machine powers off meanwhile; if init exited, the kernel would panic.
  sleep 60
}
trap finish EXIT
give_up() { say "$*"; exit 1; }

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# The target keeps registrations there, over its own power failures.
mkdir -p /dev/shm /run /var/run /var/target/pr /mnt/state
mount -t tmpfs tmpfs /tmp
say "Linux $(uname -r)"
# option NAME: the value of forebay.NAME on the kernel's command line.
option() { sed -n "s/.*forebay\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
for module in crc32c_generic virtio_pci virtio_blk ext4 configfs; do modprobe "$module"; done
mount -t configfs configfs /sys/kernel/config
ip link set lo up
# A journal needs a state directory that outlives a reboot.
mkfs.ext4 -q -F /dev/vda
mount -t ext4 /dev/vda /mnt/state

# wait_for COMMAND...: until it succeeds.
wait_for() {
  tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || give_up "waited in vain for: $*"
    sleep 0.1
  done
}

truncate -s 64M /tmp/below.img /tmp/journal.img

# A target with two disks, and two sessions to it, as of two hosts: /tmp/NAME-HOST.
iscsi() {
  for module in target_core_mod target_core_file iscsi_target_mod iscsi_tcp sd_mod; do
    modprobe "$module"
  done
  target=/sys/kernel/config/target
  group=$target/iscsi/iqn.2026-11.example:disks/tpgt_1
  mkdir -p "$group/np/127.0.0.1:3260" "$group/np/127.0.0.1:3261"
  number=0
  for name in below journal; do
    core=$target/core/fileio_0/$name
    mkdir -p "$core"
    echo "fd_dev_name=/tmp/$name.img,fd_dev_size=67108864" >"$core/control"
    echo "serial-$name" >"$core/wwn/vpd_unit_serial"
    echo 1 >"$core/enable"
    mkdir -p "$group/lun/lun_$number"
    ln -s "$core" "$group/lun/lun_$number/disk"
    number=$((number + 1))
  done
  for attribute in authentication=0 generate_node_acls=1 demo_mode_write_protect=0 \
    cache_dynamic_acls=1; do
    echo "${attribute#*=}" >"$group/attrib/${attribute%=*}"
  done
  echo 1 >"$group/enable"
  letters="a b" portal=3260
  for host in one two; do
    iscsistart -i "iqn.2026-11.example:$host" -t iqn.2026-11.example:disks -g 1 -a 127.0.0.1 \
      -p "$portal" >/tmp/iscsi.log 2>&1 || { cat /tmp/iscsi.log; give_up "cannot log in"; }
    for letter in $letters; do
      wait_for [ -b "/dev/sd$letter" ]
      # The disk with this number: 0 is the volume's, 1 its journal's.
      case $(readlink "/sys/block/sd$letter/device") in
        *:0) ln -s "/dev/sd$letter" "/tmp/below-$host" ;;
        *:1) ln -s "/dev/sd$letter" "/tmp/journal-$host" ;;
      esac
    done
    letters="c d" portal=3261
  done
}

# A subsystem with two namespaces, and a controller of each host in it. They have a device each,
# and not one with two paths, since hosts do not share a kernel.
nvme() {
  modprobe nvme_core multipath=N
  for module in nvmet nvmet_tcp nvme_tcp; do modprobe "$module"; done
  name=nqn.2026-11.example:disks
  subsystem=/sys/kernel/config/nvmet/subsystems/$name
  port=/sys/kernel/config/nvmet/ports/1
  mkdir "$subsystem"
  echo 1 >"$subsystem/attr_allow_any_host"
  number=1
  for image in below journal; do
    namespace=$subsystem/namespaces/$number
    mkdir "$namespace"
    echo "/tmp/$image.img" >"$namespace/device_path"
    echo 1 >"$namespace/resv_enable"
    echo 1 >"$namespace/enable"
    number=$((number + 1))
  done
  mkdir "$port"
  echo ipv4 >"$port/addr_adrfam"
  echo tcp >"$port/addr_trtype"
  echo 127.0.0.1 >"$port/addr_traddr"
  echo 4420 >"$port/addr_trsvcid"
  ln -s "$subsystem" "$port/subsystems/$name"
  controller=0
  for host in one two; do
    printf '%s' "transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=$name,\
hostnqn=nqn.2026-11.example:$host,hostid=00000000-0000-4000-8000-00000000000$controller" \
      >/dev/nvme-fabrics
    wait_for [ -b "/dev/nvme${controller}n2" ]
    # Their names are in the order in which they were found.
    for device in /sys/block/nvme"${controller}"n*; do
      case $(cat "$device/nsid") in
        1) ln -s "/dev/${device##*/}" "/tmp/below-$host" ;;
        2) ln -s "/dev/${device##*/}" "/tmp/journal-$host" ;;
      esac
    done
    controller=$((controller + 1))
  done
}
disks=$(option disks)
"$disks"

# start HOST: its server, with the volume on that host's ports.
start() {
  forebay serve --keeper no --state "/mnt/state/$1" --nbd "unix:/tmp/nbd-$1" --memory 64MiB \
    --volume "disk=/tmp/below-$1,mode=write-back,protection=journal,journal=/tmp/journal-$1,\
reserve=yes,nofail=yes" >>"/tmp/server-$1.log" 2>&1 &
  echo $! >"/tmp/pid-$1"
  wait_for forebay status --state "/mnt/state/$1"
}
pid() { cat "/tmp/pid-$1"; }
serves() { forebay status --json --state "/mnt/state/$1" | grep -q '"name": "disk"' &&
  ! forebay status --json --state "/mnt/state/$1" | grep -q '"missing": \[$'; }
is_missing() { forebay status --state "/mnt/state/$1" | grep -q "another host has reserved"; }
# write HOST PATTERN: all of the volume, by fio over NBD; read PATTERN HOST: compares it.
job() {
  fio --name=job --ioengine=nbd --uri="nbd+unix:///disk?socket=/tmp/nbd-$1" --bs=64k --size=8m \
    --iodepth=4 --verify=pattern --verify_pattern="$2" --minimal "$3" "$4" >/tmp/fio.log 2>&1
}
write() { job "$1" "$2" --rw=write --do_verify=0; }
compare() { job "$1" "$2" --rw=read --verify_only=0; }

start one
serves one || give_up "the first host does not serve"
write one 0x11111111 || give_up "the first host cannot write"
start two
is_missing two || give_up "the second host is not refused"
say "the second host is refused: $(forebay status --state /mnt/state/two | grep reserved)"
if dd if=/dev/zero of=/tmp/below-two bs=4096 count=1 oflag=direct 2>/dev/null; then
  give_up "the disk takes a write from a host that has not registered"
fi

# A dead server keeps its reservation, and comes back.
kill -9 "$(pid one)"
if forebay volume list --state /mnt/state/two | grep -q write-back; then
  give_up "the second host serves by itself"
fi
start one
serves one || give_up "the first host does not come back"
compare one 0x11111111 || give_up "the first host has lost data"
write one 0x22222222 || give_up "the first host cannot write again"

# The first host sleeps, and the second takes over, with what only the journal has.
kill -STOP "$(pid one)"
forebay takeover disk --state /mnt/state/two || give_up "the second host cannot take over"
compare two 0x22222222 || give_up "acknowledged data is lost"
write two 0x33333333 || give_up "the second host cannot write"
forebay volume flush disk --state /mnt/state/two >/tmp/flush.log 2>&1 || give_up "no flush"
kill -CONT "$(pid one)"
write one 0x44444444 || true
sleep 3
forebay volume flush disk --state /mnt/state/two >/tmp/flush.log 2>&1 || give_up "no flush"
for host in one two; do dd if=/tmp/below-$host of=/tmp/copy-$host bs=64k count=128 iflag=direct \
  2>/dev/null; done
cmp /tmp/copy-one /tmp/copy-two
[ "$(dd if=/tmp/copy-two bs=1 count=4 2>/dev/null | od -An -tx1 | tr -d ' ')" = 33333333 ] ||
  give_up "the former host has written to the disk"
compare two 0x33333333 || give_up "the former host has changed the data"
wait_for grep -q "taken it over" /tmp/server-one.log
say "the former host: $(grep "taken it over" /tmp/server-one.log | tail -n 1)"

# An orderly stop gives nothing up: a former owner may still sleep. The way back is a takeover.
kill -9 "$(pid one)"
forebay stop --state /mnt/state/two >/tmp/stop.log 2>&1 || give_up "the server does not stop"
start one
is_missing one || give_up "an orderly stop has given up the reservation"
forebay takeover disk --state /mnt/state/one || give_up "the first host cannot take over"
compare one 0x33333333 || give_up "the data is not there after the way back"
forebay stop --state /mnt/state/one >/tmp/stop.log 2>&1 || give_up "the server does not stop"
forebay stop --state /mnt/state/two >/tmp/stop.log 2>&1 || true

# Both hosts take over at once. Then one of them does, and must have all data written before.
for host in one two; do start "$host"; done
previous=0x33333333
for round in 1 2 3 4 5; do
  takers=
  for host in one two; do
    forebay takeover disk --state "/mnt/state/$host" >>"/tmp/takeover-$host.log" 2>&1 &
    takers="$takers $!"
  done
  # One of them may lose.
  for taker in $takers; do wait "$taker" || true; done
  [ $((round % 2)) = 0 ] || host=one
  forebay takeover disk --state "/mnt/state/$host" || give_up "host $host cannot take over"
  compare "$host" "$previous" || give_up "host $host has other data than was written"
  previous=0x5555555$round
  write "$host" "$previous" || give_up "host $host takes no writes"
done
for host in one two; do
  forebay stop --state "/mnt/state/$host" >/tmp/stop.log 2>&1 || true
done
say "two hosts have taken over at once, and no data is lost"

# Many takeovers, while clients write to a disk of zeroes: by command, and by hosts that watch the
# journal.
settings() {
  echo "/tmp/below-$1,mode=write-back,protection=journal,journal=/tmp/journal-$1,reserve=yes"
}
# take_over COUNT [OPTION...]: so many takeovers, with options of the test's.
take_over() {
  rm -rf /mnt/state/takeovers
  for name in below journal; do
    truncate -s 0 /tmp/$name.img
    truncate -s 64M /tmp/$name.img
  done
  count=$1
  shift
  takeovers --programs /bin --folder /mnt/state/takeovers --one "$(settings one)" \
    --two "$(settings two)" --takeovers "$count" --blocks 128 --clients 2 \
    --fetch "dd if=/tmp/below-two bs=64k iflag=direct" "$@" >/tmp/takeovers.log 2>&1 ||
    give_up "an acknowledged write is lost"
  # What it says once all are over.
  sed -n '/acknowledged, none lost/,$p' /tmp/takeovers.log |
    while read -r line; do say "$line"; done
}
take_over "$(option takeovers)"
take_over "$(option watched)" --watch 10
say "all passed"
