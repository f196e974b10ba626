#!/usr/bin/env bash
# Tests volumes as disks of a virtual machine: a guest under QEMU writes two disks over vhost-user,
# and reads everything back, while the server is killed and upgraded. No request may fail. At the
# end, the disks below the cache must have what the guest has read.
#
#   scripts/vhost.sh [ROUNDS [IO]]
#
# ROUNDS kills and as many upgrades (5), with the I/O engine IO (auto). The guest has the kernel
# that guest.sh fetches. FOREBAY is the program (target/release/forebay).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

rounds=${1:-5}
io=${2:-auto}
forebay=${FOREBAY:-$(target_dir)/release/forebay}
[[ -x $forebay ]] || fail "$forebay does not exist: build it with cargo build --release"
need_qemu
need fio=fio mkfs.ext4=e2fsprogs jq=jq pgrep=procps

dir=$(mktemp -d)
keeper=
qemu=
clean() {
  for process in $qemu $keeper; do kill -9 "$process" 2>/dev/null || true; done
  # shellcheck disable=SC2046
  kill -9 $(pgrep -f "$dir/state" || true) 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$dir"
}
trap clean EXIT
gave_up() {
  tail -n 60 "$dir/console" 2>/dev/null || true
  tail -n 20 "$dir/server.log"
  fail "$*"
}

fetch_kernel
begin_guest scripts/vhost-guest.sh
add_program fio
add_program mkfs.ext4
add_program fsck.ext4
add_program blkdiscard
add_modules virtio_pci virtio_blk ext4 crc32c_generic
end_guest

# Each kill finds requests in flight, because one of the disks is slow.
truncate -s 256M "$dir/raw.img" "$dir/files.img"
"$forebay" serve --keeper yes --io "$io" --memory 96MiB --state "$dir/state" \
  --volume "raw=delay(read=2ms,write=8ms):$dir/raw.img" \
  --volume "files=$dir/files.img,mode=write-back,protection=none,accept-loss=yes" \
  --vhost-user "$dir/vhost" >"$dir/server.log" 2>&1 &
keeper=$!
wait_for_socket "$dir/vhost/files.sock" "$keeper" || gave_up "the server does not start"
status() { timeout 10 "$forebay" status --json --state "$dir/state" 2>/dev/null; }
pid() { status | jq .pid; }
# wait_for_other PID: another server than this one serves.
wait_for_other() {
  local i now
  for ((i = 0; i < 600; i++)); do
    now=$(pid || true)
    if [[ -n $now && $now != "$1" ]]; then return; fi
    sleep 0.1
  done
  gave_up "no server serves"
}

# Each round takes four seconds at least, of a guest that is maybe emulated.
seconds=$((10 + 10 * rounds))
disk() {
  echo "-chardev socket,id=$1,path=$dir/vhost/$1.sock,reconnect=1"
  echo "-device vhost-user-blk-pci,chardev=$1,num-queues=2"
}
machine=(-M "q35,memory-backend=mem" -cpu max)
if [[ -n ${KERNEL_KVM:-} ]]; then machine=(-M "q35,memory-backend=mem,accel=kvm" -cpu host); fi
# shellcheck disable=SC2046
qemu-system-x86_64 "${machine[@]}" -smp 2 -m 768 -nographic \
  -no-reboot -object memory-backend-memfd,id=mem,size=768M,share=on \
  $(disk raw) $(disk files) -nic none \
  -kernel "$(echo "$cache"/boot/vmlinuz-*)" -initrd "$dir/initrd" \
  -append "$kernel_options forebay_seconds=$seconds" </dev/null >"$dir/console" 2>&1 &
qemu=$!
touch "$dir/console"
for ((i = 0; i < 1200; i++)); do
  grep -aq "guest: ready" "$dir/console" && break
  kill -0 "$qemu" 2>/dev/null || gave_up "the guest has ended"
  sleep 0.1
done
grep -aq "guest: ready" "$dir/console" || gave_up "the guest does not boot"
grep -a "guest: vda" "$dir/console"

for ((round = 0; round < rounds; round++)); do
  before=$(pid)
  kill -9 "$before"
  wait_for_other "$before"
  sleep 2
  before=$(pid)
  "$forebay" upgrade --state "$dir/state" >/dev/null || gave_up "an upgrade failed"
  wait_for_other "$before"
  sleep 2
  kill -0 "$qemu" 2>/dev/null || gave_up "the guest has ended in round $round"
done
# The disk grows under the guest, which is told.
truncate -s 320M "$dir/raw.img"
"$forebay" volume resize raw --state "$dir/state" || gave_up "the volume does not grow"
# The guest ends by itself, unless a request of it is never answered.
for ((i = 0; i < 10 * (seconds + 300); i++)); do
  kill -0 "$qemu" 2>/dev/null || break
  sleep 0.1
done
if kill -0 "$qemu" 2>/dev/null; then
  "$forebay" clients --state "$dir/state" || true
  gave_up "the guest does not end: it may wait for a request"
fi
wait "$qemu" || true
qemu=
grep -aq "guest: all passed" "$dir/console" || gave_up "the guest has failed"
grep -a "guest: .* files were written" "$dir/console"
again=$(grep -c "are served again" "$dir/server.log" || true)
"$forebay" stop --state "$dir/state"
wait "$keeper" || true
for disk in vda=raw vdb=files; do
  sum=$(sed -n "s/.*guest: sum ${disk%=*} \([0-9a-f]*\).*/\1/p" "$dir/console")
  [[ $(sha256sum <"$dir/${disk#*=}.img" | cut -d' ' -f1) == "$sum" ]] ||
    gave_up "${disk#*=}.img has other data than the guest has read"
done
say "$rounds kills and $rounds upgrades: no request failed, nothing is lost;" \
  "rings with requests of an earlier server: $again"
