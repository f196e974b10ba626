#!/bin/busybox sh
# Init process of the guest that scripts/targets.sh boots: volumes over NVMe/TCP and iSCSI, to
# itself. Reports progress on the console; the last line "guest: all passed" means success.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin

say() { echo "guest: $*"; }
finish() {
  status=$?
  [ "$status" = 0 ] || {
    say "failed with $status"
    tail -n 20 /tmp/server.log /tmp/fio.log /tmp/tgtd.log
    dmesg | tail -30
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
mkdir -p /dev/shm /run /var/run
mount -t tmpfs tmpfs /tmp
say "Linux $(uname -r)"
for module in configfs crc32c_generic ublk_drv; do modprobe "$module" || true; done
mount -t configfs configfs /sys/kernel/config
ip link set lo up

for name in nvmet lio tgt; do truncate -s 64M "/tmp/$name.img"; done
forebay serve --keeper yes --volume nvmet=/tmp/nvmet.img --volume lio=/tmp/lio.img \
  --volume tgt=/tmp/tgt.img,mode=write-back,protection=none,accept-loss=yes \
  --nbd unix:/tmp/nbd.sock --memory 64MiB --state /tmp/state >>/tmp/server.log 2>&1 &
pid() {
  forebay status --json --state /tmp/state 2>/dev/null |
    sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p'
}
# wait_for COMMAND...: until it succeeds.
wait_for() {
  tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || give_up "waited in vain for: $*"
    sleep 0.1
  done
}
wait_for forebay status --state /tmp/state
for name in nvmet lio tgt; do
  forebay attach "$name" --state /tmp/state || give_up "cannot attach $name"
done

# What docs/recipes/nvme-tcp.md says.
for module in nvmet nvmet_tcp nvme_tcp; do modprobe "$module"; done
subsystem=/sys/kernel/config/nvmet/subsystems/nqn.2026-11.example:disk
port=/sys/kernel/config/nvmet/ports/1
mkdir "$subsystem"
mkdir "$subsystem/namespaces/1"
echo 1 >"$subsystem/attr_allow_any_host"
echo /dev/forebay/nvmet >"$subsystem/namespaces/1/device_path"
echo 1 >"$subsystem/namespaces/1/enable"
mkdir "$port"
echo ipv4 >"$port/addr_adrfam"
echo tcp >"$port/addr_trtype"
echo 127.0.0.1 >"$port/addr_traddr"
echo 4420 >"$port/addr_trsvcid"
ln -s "$subsystem" "$port/subsystems/nqn.2026-11.example:disk"
printf '%s' "transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=nqn.2026-11.example:disk" \
  >/dev/nvme-fabrics
wait_for [ -b /dev/nvme0n1 ]

# What docs/recipes/iscsi.md says of the kernel's target.
for module in target_core_mod target_core_iblock iscsi_target_mod iscsi_tcp sd_mod; do
  modprobe "$module"
done
target=/sys/kernel/config/target
mkdir -p "$target/core/iblock_0/disk"
echo udev_path=/dev/forebay/lio >"$target/core/iblock_0/disk/control"
echo 1 >"$target/core/iblock_0/disk/enable"
group=$target/iscsi/iqn.2026-11.example:lio/tpgt_1
mkdir -p "$group/lun/lun_0" "$group/np/127.0.0.1:3260"
ln -s "$target/core/iblock_0/disk" "$group/lun/lun_0/disk"
for attribute in authentication=0 generate_node_acls=1 demo_mode_write_protect=0 \
  cache_dynamic_acls=1; do
  echo "${attribute#*=}" >"$group/attrib/${attribute%=*}"
done
echo 1 >"$group/enable"
# disks: the SCSI disks there are.
disks() {
  for disk in /dev/sd?; do
    if [ -b "$disk" ]; then basename "$disk"; fi
  done
}
# log_in NAME PORT: prints the disk that appears.
log_in() {
  known=$(disks)
  iscsistart -i iqn.2026-11.example:host -t "iqn.2026-11.example:$1" -g 1 -a 127.0.0.1 -p "$2" \
    >/tmp/iscsi.log 2>&1 || { cat /tmp/iscsi.log >&2; return 1; }
  tries=0
  until [ "$(disks)" != "$known" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || return 1
    sleep 0.1
  done
  for disk in $(disks); do
    case " $(echo "$known" | tr '\n' ' ') " in *" $disk "*) ;; *) echo "$disk" ;; esac
  done
}
lio=$(log_in lio 3260) || give_up "cannot log in to the target of LIO"

# And of tgt, which is a process.
tgtd -f --iscsi portal=127.0.0.1:3261 >/tmp/tgtd.log 2>&1 &
wait_for tgtadm --lld iscsi --op show --mode system
tgtadm --lld iscsi --op new --mode target --tid 1 -T iqn.2026-11.example:tgt
tgtadm --lld iscsi --op new --mode logicalunit --tid 1 --lun 1 -b /dev/forebay/tgt
tgtadm --lld iscsi --op bind --mode target --tid 1 -I ALL
tgt=$(log_in tgt 3261) || give_up "cannot log in to the target of tgt"
say "disks: nvme0n1 over NVMe/TCP, $lio over LIO, $tgt over tgt"

# Every block is read back, while the server is killed and upgraded.
for disk in nvme0n1 "$lio" "$tgt"; do
  [ "$(cat "/sys/block/$disk/size")" = 131072 ] || give_up "$disk has another size"
done
job() { echo "--name=$1 --filename=/dev/$1 --size=48m"; }
# shellcheck disable=SC2046
fio --direct=1 --ioengine=libaio --verify=crc32c --verify_backlog=32 --time_based --runtime=40 \
  --rw=randwrite --bsrange=4k-64k --iodepth=8 --randrepeat=0 --minimal \
  $(job nvme0n1) $(job "$lio") $(job "$tgt") >/tmp/fio.log 2>&1 &
verify=$!
for round in 1 2 3; do
  sleep 3
  old=$(pid)
  kill -9 "$old"
  sleep 3
  old=$(pid)
  forebay upgrade --state /tmp/state >/tmp/upgrade.log 2>&1 || { cat /tmp/upgrade.log; exit 1; }
  say "round $round: killed and upgraded, now process $(pid)"
done
wait "$verify" || give_up "the verification has failed"
for pair in nvme0n1=nvmet "$lio=lio" "$tgt=tgt"; do
  sync
  sum=$(dd if="/dev/${pair%=*}" bs=1M iflag=direct 2>/dev/null | sha256sum)
  below=$(dd if="/dev/forebay/${pair#*=}" bs=1M iflag=direct 2>/dev/null | sha256sum)
  [ "$sum" = "$below" ] || give_up "${pair%=*} is not /dev/forebay/${pair#*=}"
done
if dmesg | grep -E "I/O error|Connection lost"; then give_up "the kernel saw an error"; fi
say "all passed"
