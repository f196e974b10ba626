#!/bin/busybox sh
# Init process of the three guests that scripts/failover.sh boots, which the kernel's command line
# gives a role (forebay.role). The initiator reports progress on the console; its last line "guest:
# all passed" means success.
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
      tail -n 30 "$log" | cut -c1-400
    done
    echo w >/proc/sysrq-trigger
    dmesg | tail -n 60
    for host in one two; do
      echo "== host $host"
      on "$host" "cat /run/own.log; echo w >/proc/sysrq-trigger; dmesg | tail -n 80"
    done
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
mkdir -p /dev/shm /run /var/run /mnt/state /mnt/disk /etc/forebay
mount -t tmpfs tmpfs /tmp
role=$(sed -n 's/.*forebay\.role=\([^ ]*\).*/\1/p' /proc/cmdline)
for module in crc32c_generic virtio_pci virtio_net virtio_blk ext4 configfs nvmet nvmet_tcp \
  nvme_tcp; do
  modprobe "$module"
done
mount -t configfs configfs /sys/kernel/config
ip link set lo up

# wait_for COMMAND...: until it succeeds.
wait_for() {
  tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || give_up "waited in vain for: $*"
    sleep 0.1
  done
}
nvmet=/sys/kernel/config/nvmet
nqn=nqn.2026-11.example

# host NAME NETWORK: one of the two hosts, which obeys what comes over the network.
host() {
  ip addr add "10.0.$2.2/24" dev eth0
  ip link set eth0 up
  mkfs.ext4 -q -F /dev/vda
  mount -t ext4 /dev/vda /mnt/state
  printf '%s\n' "NQN=$nqn:vm" UUID=2f6fb40e-3cdb-4f41-9c1b-7f9c8a6f3d11 "ADDRESS=10.0.$2.2" \
    "CONTROLLERS=\"${2}000 ${2}999\"" >/etc/forebay/export-vm
  until printf '%s' "transport=tcp,traddr=10.0.$2.1,trsvcid=4420,nqn=$nqn:shared,\
hostnqn=$nqn:$1,hostid=00000000-0000-4000-8000-00000000000$2" >/dev/nvme-fabrics; do sleep 1; done
  wait_for [ -b /dev/nvme0n2 ]
  # Their names are in the order in which they were found.
  for device in /sys/block/nvme0n*; do
    ln -s "/dev/${device##*/}" "/dev/shared-$(cat "$device/nsid")"
  done
  export FOREBAY_STATE=/mnt/state/forebay
  forebay serve --keeper no --nbd unix:/run/nbd --memory 64MiB --volume "vm=/dev/shared-1,\
mode=write-back,protection=journal,journal=/dev/shared-2,reserve=yes,standby=yes" \
    >/dev/console 2>&1 &
  server=$!
  echo "$server" >/run/server
  wait_for forebay status
  forebay-export prepare vm
  # What the units of the recipe do.
  cat >/bin/own <<'END'
#!/bin/sh
forebay takeover vm --hold &
hold=$!
echo "$hold" >/run/hold
forebay-export start vm && echo "exported"
wait "$hold"
echo "the volume is not served here any more: $?"
forebay-export stop vm
echo "not exported any more"
END
  chmod +x /bin/own
  nc -ll -p 23 -e /bin/sh
}
case $role in
  one) host one 1 ;;
  two) host two 2 ;;
esac

# The initiator, and the shared disks.
say "Linux $(uname -r)"
truncate -s 64M /tmp/below.img /tmp/journal.img
mkdir "$nvmet/subsystems/$nqn:shared"
echo 1 >"$nvmet/subsystems/$nqn:shared/attr_allow_any_host"
number=1
for image in below journal; do
  namespace=$nvmet/subsystems/$nqn:shared/namespaces/$number
  mkdir "$namespace"
  echo "/tmp/$image.img" >"$namespace/device_path"
  echo 1 >"$namespace/resv_enable"
  echo 1 >"$namespace/enable"
  number=$((number + 1))
done
for network in 1 2; do
  ip addr add "10.0.$network.1/24" dev "eth$((network - 1))"
  ip link set "eth$((network - 1))" up
  port=$nvmet/ports/$network
  mkdir "$port"
  echo ipv4 >"$port/addr_adrfam"
  echo tcp >"$port/addr_trtype"
  echo "10.0.$network.1" >"$port/addr_traddr"
  echo 4420 >"$port/addr_trsvcid"
  ln -s "$nvmet/subsystems/$nqn:shared" "$port/subsystems/$nqn:shared"
done

address() { case $1 in one) echo 10.0.1.2 ;; two) echo 10.0.2.2 ;; esac; }
# on HOST COMMAND: runs a command there, and prints what it prints.
on() { printf '%s\nexit\n' "$2" | timeout 60 nc -w 5 "$(address "$1")" 23; }
is_ready() { on "$1" "forebay status >/dev/null && echo ready" | grep -q ready; }
own() { on "$1" "rm -f /run/own.log; own >/run/own.log 2>&1 </dev/null &"; }
is_exported() { on "$1" "tail -n 1 /run/own.log 2>&1" | grep -qx exported; }
is_ended() { on "$1" "tail -n 1 /run/own.log 2>&1" | grep -q "not exported"; }
for host in one two; do wait_for is_ready "$host"; done
own one
wait_for is_exported one
say "host one exports the volume"

# As `nvme connect --keep-alive-tmo=5 --reconnect-delay=2 --ctrl-loss-tmo=-1`.
for host in one two; do
  # The end of a child interrupts it.
  until printf '%s' "transport=tcp,traddr=$(address "$host"),trsvcid=4420,nqn=$nqn:vm,\
hostnqn=$nqn:initiator,hostid=00000000-0000-4000-8000-000000000009,keep_alive_tmo=5,\
reconnect_delay=2,ctrl_loss_tmo=-1" >/dev/nvme-fabrics; do sleep 1; done
done
wait_for [ -b /dev/nvme0n1 ]
echo 600 >/sys/block/nvme0n1/delayed_removal_secs
mkfs.ext4 -q -F /dev/nvme0n1
mount -t ext4 /dev/nvme0n1 /mnt/disk

fio --name=job --directory=/mnt/disk --size=24m --direct=1 --ioengine=libaio --iodepth=4 \
  --rw=randwrite --bsrange=4k-64k --verify=crc32c --verify_backlog=32 --fsync=16 --time_based \
  --runtime=3600 --randrepeat=0 --status-interval=1 --minimal >/tmp/fio.log 2>&1 &
load=$!
# The longest time without a completed write is in /tmp/pause, in hundredths of a second.
hundredths() { sed 's/^\([0-9]*\)\.\([0-9]*\) .*/\1\2/' /proc/uptime; }
written() { awk '{ print $7 }' /sys/block/nvme0n1/stat; }
watch_pauses() {
  last=$(written)
  since=$(hundredths)
  while :; do
    sleep 0.1
    now=$(hundredths)
    if [ $((now - since)) -gt "$(cat /tmp/pause)" ]; then echo $((now - since)) >/tmp/pause; fi
    [ "$(written)" = "$last" ] || { last=$(written) && since=$now; }
  done
}
# wait_for_load: the load goes on, on the path of a host.
wait_for_load() {
  kill -0 "$load" 2>/dev/null || give_up "the load has ended: a request has failed"
  before=$(written)
  tries=0
  until [ "$(written)" -gt $((before + 4000)) ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 1200 ] || give_up "nothing is written any more"
    sleep 0.1
  done
  kill -0 "$load" 2>/dev/null || give_up "the load has ended: a request has failed"
}
# paused: the longest pause since the last call.
paused() {
  echo "$(($(cat /tmp/pause) / 100)).$(($(cat /tmp/pause) % 100 / 10)) s"
  echo 0 >/tmp/pause
}
echo 0 >/tmp/pause
watch_pauses 2>/dev/null &
wait_for_load
say "without a takeover, the longest pause of writes is $(paused)"

on one "kill \$(cat /run/hold)"
wait_for is_ended one
own two
wait_for is_exported two
wait_for_load
say "a planned move to host two: a pause of $(paused)"

own one
wait_for is_exported one
wait_for_load
wait_for is_ended two
wait_for_load
say "a takeover by host one from the living host two: a pause of $(paused)"

on one "kill -STOP \$(cat /run/server)"
own two
wait_for is_exported two
wait_for_load
say "a takeover by host two while the server of host one sleeps: a pause of $(paused)"
on one "kill -CONT \$(cat /run/server)"
wait_for is_ended one
wait_for_load

on two "{ sleep 1; echo o >/proc/sysrq-trigger; } >/dev/null 2>&1 </dev/null &"
own one
wait_for is_exported one
wait_for_load
say "a takeover by host one after host two has lost power: a pause of $(paused)"

# It reads back what it has not yet, and ends.
kill -INT "$load"
wait "$load" || [ $? = 128 ] || give_up "the load has failed"
if grep -q "verify:\|verify failed" /tmp/fio.log; then give_up "the verification has failed"; fi
umount /mnt/disk
e2fsck -fn /dev/nvme0n1 >/tmp/e2fsck.log 2>&1 || give_up "the file system is damaged"
if dmesg | grep -E "I/O error|EXT4-fs (error|warning)"; then give_up "the kernel saw an error"; fi
say "all passed"
