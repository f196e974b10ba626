#!/usr/bin/env bash
# Compares the built program with a byte-exact model (`model-client`), over every kind of backing
# store, in every mode, with both I/O engines, through orderly stops, kills and power cuts. After
# each stop the backing store itself is read and compared.
#
#   scripts/backings.sh quick|full|guest|all
#
#   quick  one backing store of each kind that needs no root: a file, NBD servers with blocks of 512
#          and 4096 bytes; and a loop device with blocks of 4096 bytes if available
#   full   on this machine: loop devices, files on ext4, xfs, btrfs and tmpfs, FUSE, NBD servers
#   guest  in a kernel under QEMU: null_blk, scsi_debug, md (without root)
#   all    full and guest
#
# Prints a row for each run, and a line with counts; lists untestable backing stores with the
# reason. Fails if a row is red. Environment:
#
#   BACKINGS_OPS=N    requests of each row (10000; quick 5000, in the guest 3000)
#   BACKINGS_KILLS=N  kills of each row with kills (3)
#   BACKINGS_CUTS=N   power cuts of each row with power cuts (3)
#   BACKINGS_ONLY=RE  only rows whose `BACKING MODE END IO` matches the regular expression
#   BACKINGS_IO='io_uring epoll'  each row with these; by default they alternate
#   BACKINGS_SEED=N   seed of all rows (1)
#   BACKINGS_WITHOUT=K  kinds of requests to leave out: `trim,zero,cache,fua`
#   BACKINGS_SIZE=N   MiB of each disk (64; quick 32, in the guest 16)
#   FOLDER            directory for the files (the build directory)
#
# The longest runs over blocks of 4096 bytes, one row each:
#
#   BACKINGS_OPS=10000000 BACKINGS_ONLY='^loop-4096 journal stop' scripts/backings.sh full
#   BACKINGS_KILLS=500 BACKINGS_OPS=500000 BACKINGS_ONLY='^loop-4096 journal kill' ...
#   BACKINGS_CUTS=200 BACKINGS_OPS=200000 BACKINGS_ONLY='^loop-4096 journal cut' ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/guest.sh
. scripts/guest.sh

tier=${1:?usage: backings.sh quick|full|guest|all}
programs=${PROGRAMS:-$(target_dir)/release}
kills=${BACKINGS_KILLS:-3}
cuts=${BACKINGS_CUTS:-3}
only=${BACKINGS_ONLY:-}
seed=${BACKINGS_SEED:-1}
without=${BACKINGS_WITHOUT:+--without=$BACKINGS_WITHOUT}
# Timeout of a row; only a hanging one takes this long.
row_seconds=${BACKINGS_ROW_SECONDS:-7200}
for program in forebay model-client; do
  [[ -x $programs/$program ]] || fail "$programs/$program is not built: run cargo build --release" \
    "--workspace --bins first"
done
PATH=$PATH:/usr/sbin:/sbin

dir=$(mktemp -d -p "${FOLDER:-$(target_dir)}" backings.XXXXXX)
green=0
red=0
skipped=0
# Commands that take down the current backing store, in this order.
undo=()
# The `timeout` that runs the model client or the guest. It leads the process group of the server.
child=
clean() {
  [[ -z $child ]] || kill -KILL -- "-$child" 2>/dev/null || true
  take_down
  rm -rf "$dir"
}
trap clean EXIT

# later COMMAND...: run by take_down, the last one first.
later() { undo=("$(printf '%q ' "$@")" "${undo[@]}"); }
take_down() {
  local command
  for command in "${undo[@]}"; do eval "$command" >/dev/null 2>&1 || true; done
  undo=()
}
end_process() { kill "$1" && wait "$1"; }

# The current backing store.
backing=
outside=
# A disk served by a process: its command, and whether it loses unflushed data when killed.
disk=
is_volatile=

row() { printf '%-22s %-13s %-5s %-8s %9s %9s %8s %7s  %s\n' "$@"; }
heading() {
  row backing mode end io requests compared '1/s' seconds verdict
}
skip_row() {
  row "$1" - - - - - - - "skipped: $2"
  skipped=$((skipped + 1))
}

# count NAME MODE END IO STATUS LOG: prints the row of a run of model-client, and counts it.
count() {
  local line requests mib rate seconds verdict=green
  line=$(grep '^operations=' "$6" | tail -1 || true)
  requests=$(sed -n 's/.*operations=\([0-9]*\).*/\1/p' <<<"$line")
  mib=$(sed -n 's/.*compared_mib=\([0-9]*\).*/\1 MiB/p' <<<"$line")
  rate=$(sed -n 's/.*per_second=\([0-9]*\).*/\1/p' <<<"$line")
  seconds=$(sed -n 's/.*seconds=\([0-9.]*\).*/\1/p' <<<"$line")
  if [[ $5 != 0 ]]; then
    verdict="RED"
    red=$((red + 1))
  else
    green=$((green + 1))
  fi
  row "$1" "$2" "$3" "$4" "${requests:--}" "${mib:--}" "${rate:--}" "${seconds:--}" "$verdict"
  if [[ $verdict == RED ]]; then
    sed 's/^/    /' "$6" | cut -c 1-400 | head -16
    # The place of a panic.
    { grep -A 3 panicked "$dir/server/log" 2>/dev/null || true; } | sed 's/^/    log: /'
    [[ -z $disk ]] || tail -3 "$dir/disk.log" 2>/dev/null | sed 's/^/    disk: /'
  fi
}

# run NAME MODE END IO: one row over the backing store that is set up.
run() {
  local name=$1 mode=$2 end=$3 io=$4
  local status=0 memory=32 over="" layer options=() begin=$SECONDS
  [[ -z $only || "$name $mode $end $io" =~ $only ]] || return 0
  # 32 MiB evict lines constantly, 64 MiB less often.
  [[ $io == io_uring ]] || memory=64
  case $end in
    stop) options=(--stops 2) ;;
    kill) options=(--kills "$kills") ;;
    cut) options=(--cuts "$cuts"); over="volatile(keep=0.4):" ;;
  esac
  layer=$over
  [[ -z $is_volatile ]] || layer=""
  [[ -z $disk ]] || options+=(--disk "$disk" --disk-socket "$dir/disk.sock")
  rm -rf "$dir/server" "$dir/journal" "$dir/disk.log"
  truncate -s 48M "$dir/journal"
  timeout "$row_seconds" "$programs/model-client" --programs "$programs" --folder "$dir/server" \
    --backing "$layer$backing" --outside "$outside" --mode "$mode" \
    --journal "$over$dir/journal" --io "$io" --memory-mib "$memory" --operations "$operations" \
    --seed "$seed" ${without:+"$without"} "${options[@]}" >"$dir/run.log" 2>&1 &
  child=$!
  wait "$child" || status=$?
  child=
  ((status != 124)) || echo "no end within $((SECONDS - begin)) s" >>"$dir/run.log"
  count "$name" "$mode" "$end" "$io" "$status" "$dir/run.log"
}

# matches NAME: whether any row of this backing store is selected.
matches() {
  local mode end io
  [[ -n $only ]] || return 0
  for mode in write-back journal ordered journal-flush write-through bypass; do
    for end in stop kill cut; do
      for io in io_uring epoll; do
        if [[ "$1 $mode $end $io" =~ $only ]]; then return 0; fi
      done
    done
  done
  return 1
}

# rows_all NAME: every mode with every end. The engines alternate, unless each row runs with both.
rows_all() {
  local mode end turn=0
  for mode in write-back journal write-through bypass; do
    for end in stop kill cut; do
      turn=$((turn + 1))
      run_with "$1" "$mode" "$end" "$turn"
    done
  done
  run_with "$1" ordered cut 0
  run_with "$1" journal-flush cut 1
}

# run_with NAME MODE END TURN
run_with() {
  local io engines=(io_uring epoll)
  for io in ${BACKINGS_IO:-${engines[$4 % 2]}}; do
    run "$1" "$2" "$3" "$io"
  done
}

# rows_cut NAME: for a disk that itself loses unflushed data; without trims, which its cache
# ignores.
rows_cut() {
  local mode io=io_uring
  local without="--without=trim${BACKINGS_WITHOUT:+,$BACKINGS_WITHOUT}"
  for mode in write-back journal journal-flush ordered write-through bypass; do
    run "$1" "$mode" cut "$io"
    [[ $io == epoll ]] && io=io_uring || io=epoll
  done
}

# rows_quick NAME
rows_quick() {
  run "$1" write-back kill io_uring
  run "$1" journal cut epoll
}

# need_root: prints what is missing for steps that only root can do.
need_root() {
  if [[ $(id -u) != 0 ]]; then
    echo "it needs root"
  elif [[ ! -e /dev/loop-control ]]; then
    echo "there is no /dev/loop-control"
  fi
}

# Each of these sets up a backing store of $size MiB: `backing` as a volume names it, and `outside`,
# the file or device with its bytes. On failure it prints the reason to standard output.

make_file() {
  backing=$dir/disk.img
  outside=$backing
  truncate -s "${size}M" "$outside"
}

# make_loop SECTOR_BYTES FILE_MIB: sets `outside`.
make_loop() {
  local file
  file=$(mktemp -p "$dir" loop.XXXXXX)
  truncate -s "$2M" "$file"
  later rm "$file"
  outside=$(losetup --find --show --sector-size "$1" "$file" 2>"$dir/why") || return 1
  later losetup --detach "$outside"
}

# set_up_loop SECTOR_BYTES
set_up_loop() {
  make_loop "$1" "$size" || return 1
  backing=$outside
}

# set_up_on FILE_SYSTEM SECTOR_BYTES: a file on it.
set_up_on() {
  local options=()
  mkdir -p "$dir/mnt"
  if [[ $1 == tmpfs ]]; then
    mount -t tmpfs -o "size=$((size * 2))M" tmpfs "$dir/mnt" 2>"$dir/why" || return 1
  else
    # The minimum of xfs.
    make_loop "$2" "$((size * 2 + 320))" || return 1
    case $1 in
      ext4) options=(-F -q) ;;
      xfs | btrfs) options=(-f -q) ;;
    esac
    "mkfs.$1" "${options[@]}" "$outside" >"$dir/why" 2>&1 || return 1
    mount -t "$1" "$outside" "$dir/mnt" 2>"$dir/why" || return 1
  fi
  later umount "$dir/mnt"
  backing=$dir/mnt/disk.img
  outside=$backing
  truncate -s "${size}M" "$outside"
}

# disk_is COMMAND...: a server that is the disk, at $dir/disk.sock. model-client starts it.
disk_is() {
  disk="$(printf '%q ' "$@")2>>$(printf '%q' "$dir/disk.log")"
  backing="nbd+unix:///?socket=$dir/disk.sock"
}

# nbdkit_is FILTER BLOCK_BYTES OPTION...: nbdkit over the file, with FILTER and options for it.
nbdkit_is() {
  local filter=$1 bytes=$2
  shift 2
  disk_is nbdkit --foreground --unix "$dir/disk.sock" --filter=blocksize-policy \
    ${filter:+--filter=noextents --filter="$filter"} file "$outside" "$@" \
    blocksize-minimum="$bytes" blocksize-preferred=65536 blocksize-maximum=32M \
    blocksize-error-policy=error
}

# set_up_nbdkit BLOCK_BYTES: a server that accepts no smaller blocks.
set_up_nbdkit() {
  make_file
  nbdkit_is "" "$1"
}

# set_up_volatile BLOCK_BYTES: the same with a volatile cache.
set_up_volatile() {
  make_file
  is_volatile=yes
  nbdkit_is cache "$1" cache=writeback cache-min-block-size=4K
}

# set_up_qemu BLOCK_BYTES
set_up_qemu() {
  make_file
  disk_is qemu-nbd --persistent --shared=0 --export-name= --socket="$dir/disk.sock" \
    --discard=unmap --image-opts "driver=blkdebug,align=$1,discard=unmap,image.driver=file,$(
    )image.discard=unmap,image.filename=$outside"
}

# set_up_nbdfuse BLOCK_BYTES: a file in FUSE, over a server.
set_up_nbdfuse() {
  local i
  set_up_nbdkit "$1"
  touch "$dir/fuse.img"
  rm -f "$dir/disk.sock"
  sh -c "exec $disk" &
  later end_process "$!"
  disk=
  wait_for_socket "$dir/disk.sock" "$!" || return 1
  nbdfuse "$dir/fuse.img" --unix "$dir/disk.sock" >"$dir/why" 2>&1 &
  later end_process "$!"
  later fusermount3 -u "$dir/fuse.img"
  for ((i = 0; i < 200; i++)); do
    [[ $(stat -c %s "$dir/fuse.img") == 0 ]] || break
    sleep 0.05
  done
  ((i < 200)) || return 1
  backing=$dir/fuse.img
}

# set_up_bindfs: a file in FUSE, over the file system of this folder.
set_up_bindfs() {
  mkdir -p "$dir/real" "$dir/bound"
  truncate -s "${size}M" "$dir/real/disk.img"
  bindfs --no-allow-other "$dir/real" "$dir/bound" >"$dir/why" 2>&1 || return 1
  later fusermount3 -u "$dir/bound"
  backing=$dir/bound/disk.img
  outside=$dir/real/disk.img
}

# with ROWS NAME WHY SET_UP...: sets up a backing store and runs its rows; skips it if WHY is not
# empty.
with() {
  local rows=$1 name=$2 why=$3
  shift 3
  matches "$name" || return 0
  if [[ -n $why ]]; then
    skip_row "$name" "$why"
    return
  fi
  disk=
  is_volatile=
  : >"$dir/why"
  if "$@"; then
    "$rows" "$name"
  else
    skip_row "$name" "$1 failed: $(head -1 "$dir/why")"
  fi
  take_down
}

quick() {
  size=${BACKINGS_SIZE:-32}
  operations=${BACKINGS_OPS:-5000}
  kills=${BACKINGS_KILLS:-1}
  cuts=${BACKINGS_CUTS:-1}
  need nbdkit=nbdkit
  heading
  with rows_quick file "" make_file
  with rows_quick nbdkit-512 "" set_up_nbdkit 512
  with rows_quick nbdkit-4096 "" set_up_nbdkit 4096
  with rows_quick loop-4096 "$(need_root)" set_up_loop 4096
}

full() {
  local bytes root fuse=""
  size=${BACKINGS_SIZE:-64}
  operations=${BACKINGS_OPS:-10000}
  need nbdkit=nbdkit nbdfuse=nbdfuse qemu-nbd=qemu-utils bindfs=bindfs mkfs.ext4=e2fsprogs \
    mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs
  root=$(need_root)
  [[ -w /dev/fuse ]] || fuse="/dev/fuse can't be used"
  heading
  with rows_all file "" make_file
  for bytes in 512 4096; do
    with rows_all "loop-$bytes" "$root" set_up_loop "$bytes"
    for system in ext4 xfs btrfs; do
      with rows_all "$system-$bytes" "$root" set_up_on "$system" "$bytes"
    done
  done
  with rows_all tmpfs "$root" set_up_on tmpfs
  for bytes in 1 512 4096 65536; do
    with rows_all "nbdkit-$bytes" "" set_up_nbdkit "$bytes"
  done
  for bytes in 512 4096 65536; do
    with rows_cut "nbdkit-volatile-$bytes" "" set_up_volatile "$bytes"
  done
  for bytes in 1 512 4096 65536; do
    with rows_all "qemu-nbd-$bytes" "" set_up_qemu "$bytes"
  done
  with rows_all bindfs "$fuse" set_up_bindfs
  for bytes in 512 4096; do
    with rows_all "nbdfuse-$bytes" "$fuse" set_up_nbdfuse "$bytes"
  done
}

# guest: the same in a kernel of its own; scripts/backings-guest.sh has the backing stores.
guest() {
  local name mode end io status command
  need_qemu
  need mdadm=mdadm mkfs.ext4=e2fsprogs
  fetch_kernel
  say "packing the guest"
  begin_guest scripts/backings-guest.sh
  for name in forebay model-client; do
    strip -o "$dir/$name" "$programs/$name"
    add_program "$dir/$name"
  done
  add_program mdadm
  add_modules crc32c_generic loop null_blk scsi_debug sd_mod crc-t10dif crct10dif_generic \
    raid0 raid1 raid10 raid456 virtio_pci virtio_blk ext4
  truncate -s 512M "$dir/kept"
  mkfs.ext4 -F -q "$dir/kept"
  {
    printf 'operations=%q\nkills=%q\ncuts=%q\nseed=%q\n' "${BACKINGS_OPS:-3000}" "$kills" "$cuts" \
      "$seed"
    printf 'only=%q\nsize=%q\nwithout=%q\n' "$only" "${BACKINGS_SIZE:-16}" "$without"
  } >"$dir/guest/data/settings"
  end_guest
  qemu_command
  say "booting $(basename "$cache"/boot/vmlinuz-*)"
  heading
  : >"$dir/console"
  while IFS= read -r line; do
    child=$!
    line=${line%$'\r'}
    printf '%s\n' "$line" >>"$dir/console"
    case $line in
      "row: "*)
        read -r _ name mode end io status <<<"$line"
        awk '/^begin: / { text = "" } { text = text $0 "\n" } END { printf "%s", text }' \
          "$dir/console" >"$dir/run.log"
        count "$name" "$mode" "$end" "$io" "$status" "$dir/run.log"
        ;;
      "skip: "*)
        read -r _ name why <<<"$line"
        skip_row "$name" "$why"
        ;;
    esac
  done < <(exec timeout "$row_seconds" "${command[@]}" -nographic -nic none \
    -drive "file=$dir/kept,if=virtio,format=raw,cache=unsafe" \
    -append "$kernel_options" </dev/null 2>&1)
  child=
  if ! grep -qx 'guest: all run' "$dir/console"; then
    tail -30 "$dir/console"
    red=$((red + 1))
    say "the guest did not finish"
  fi
}

begin=$SECONDS
case $tier in
  quick | full | guest) "$tier" ;;
  all)
    full
    guest
    ;;
  *) fail "no tier '$tier': quick, full, guest or all" ;;
esac
printf '%d rows green, %d RED, %d backing stores skipped, in %d s\n' \
  "$green" "$red" "$skipped" "$((SECONDS - begin))"
((green + red + skipped > 0)) || fail "no row matches BACKINGS_ONLY: $only"
((red == 0))
