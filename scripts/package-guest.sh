#!/bin/bash
# Runs in the guest that scripts/service.sh boots with two packages. The first boot installs the old
# package, and has a disk cached and mounted at boot. The second one upgrades and removes it while
# files are written. The last line "guest: all passed" means success.
set -Eeuo pipefail

say() { echo "guest: $*"; }

finish() {
  local status=$?
  if ((status)); then
    say "failed with $status"
    systemctl status --no-pager --lines=0 forebay 'forebay-attach@*' || true
    journalctl -b -u forebay -u 'forebay-attach@*' --no-pager --lines=40 || true
    tail -n 40 /tmp/apt || true
    systemctl poweroff --force --force
  fi
}
trap finish EXIT
trap 'say "failed: $BASH_COMMAND" >&2' ERR

# within SECONDS WHAT COMMAND...: repeats a command until it succeeds.
within() {
  local seconds=$1 what=$2 begin=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS - begin < seconds)) || { say "not within $seconds s: $what"; exit 1; }
    sleep 0.5
  done
  say "$what, after $((SECONDS - begin)) s"
}

is_booted() { [[ $(systemctl is-system-running) != @(initializing|starting) ]]; }
serves() { forebay status --json | grep -q "\"name\": *\"$1\""; }
server() { forebay status --json | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*$'; }
version() { dpkg-query --show --showformat '${Version}' forebay; }
# The guest has no network.
apt() {
  DEBIAN_FRONTEND=noninteractive apt-get -y --no-install-recommends "$@" >/tmp/apt 2>&1 </dev/null
}
has_written_more() { (($(cat /tmp/written 2>/dev/null || echo 0) > $1)); }

# write: files on the block device, until there is /tmp/stop. An error ends it.
write() {
  local number=0
  while [[ ! -e /tmp/stop ]]; do
    number=$((number + 1))
    head -c 100000 /dev/urandom >/tmp/source
    cp /tmp/source /srv/file && sync /srv/file && cmp /tmp/source /srv/file || return 1
    echo "$number" >/tmp/written
    sleep 0.1
  done
}

install_old() {
  apt install /packages/old.deb
  systemctl is-active --quiet forebay
  systemctl is-enabled --quiet forebay
  [[ $(stat -c '%U %G %a' /etc/forebay/forebay.toml) == 'root forebay 640' ]]
  forebay status --json | grep -q '"volumes": *\[\]'
  say "installed, and served without volumes in $(ps_memory) KiB"
  cat /packages/forebay.toml >/etc/forebay/forebay.toml
  systemctl restart forebay
  cp /packages/fstab /etc/fstab
  systemctl enable --quiet forebay-attach@mounted
  touch /packages/installed
  say "installed"
}

# ps_memory: the memory of the server and its keeper.
ps_memory() {
  awk '{ print int($1 / 1024) }' /sys/fs/cgroup/system.slice/forebay.service/memory.current
}

upgrade() {
  local old written
  old=$(server)
  written=$(cat /tmp/written)
  apt install /packages/new.deb
  [[ $(version) == *+next ]]
  [[ $(server) != "$old" ]]
  systemctl is-active --quiet forebay
  # The new server runs the new file.
  [[ /proc/$(server)/exe -ef /usr/bin/forebay ]]
  cmp /packages/forebay.toml /etc/forebay/forebay.toml
  within 120 "files are written after the upgrade" has_written_more "$((written + 3))"
}

# refuse_settings: if the new program refuses the settings, it is installed and the server goes on.
refuse_settings() {
  local old
  old=$(server)
  echo 'mistake = 1' >/etc/forebay/forebay.toml
  apt install --reinstall /packages/new.deb
  grep 'forebay: the server still runs the old program' /tmp/apt
  [[ $(server) == "$old" ]]
  cp /packages/forebay.toml /etc/forebay/forebay.toml
  apt install --reinstall /packages/new.deb
  [[ $(server) != "$old" ]]
}

# refuse_removal: the package stays, and all goes on, while its block device is mounted.
refuse_removal() {
  local old written
  old=$(server)
  written=$(cat /tmp/written)
  if apt remove forebay; then say "a mounted package was removed"; exit 1; fi
  grep 'forebay: .*mounted on /srv' /tmp/apt
  [[ $(dpkg-query --show --showformat '${db:Status-Status}' forebay) == installed ]]
  [[ $(server) == "$old" ]]
  within 120 "files are written after the refusal" has_written_more "$((written + 3))"
}

# refuse_loss: the package stays while a disk does not take data that only memory has.
refuse_loss() {
  local old sick='error(kind=write):/dev/vdc,mode=write-back,protection=none,accept-loss=yes'
  old=$(server)
  forebay volume add "sick=$sick"
  forebay attach sick
  dd if=/dev/urandom of=/dev/forebay/sick bs=64k count=4 oflag=direct status=none
  if apt remove forebay; then say "a package with dirty data was removed"; exit 1; fi
  grep 'forebay: the package is not removed' /tmp/apt
  forebay detach --force sick
  if apt remove forebay; then say "a package with dirty data was removed"; exit 1; fi
  grep -B1 'forebay: the package is not removed' /tmp/apt
  [[ $(server) == "$old" && $(version) == *+next ]]
  systemctl is-active --quiet forebay forebay-attach@mounted
  forebay volume discard --yes sick
  say "dirty data prevents the removal"
}

remove() {
  apt remove forebay
  [[ ! -e /usr/bin/forebay && ! -e /dev/forebay/mounted && ! -e /run/forebay ]]
  systemctl list-units --state=active,activating,failed --plain --no-legend 'forebay*' >/tmp/units
  if [[ -s /tmp/units ]]; then cat /tmp/units; false; fi
  if grep -lx forebay /proc/[0-9]*/comm 2>/dev/null; then exit 1; fi
  mount /dev/vdd /srv
  cmp /tmp/source /srv/file
  umount /srv
  [[ -e /etc/forebay/forebay.toml && -e /var/lib/forebay ]]
  say "removed, and the disk has the last file"
  apt purge forebay
  [[ ! -e /etc/forebay && ! -e /var/lib/forebay ]]
  say "purged"
}

say "systemd $(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')"
within 600 "booted" is_booted
if [[ ! -e /packages/installed ]]; then
  install_old
  systemctl poweroff
  exit
fi
within 120 "mounted at boot" mountpoint -q /srv
[[ $(findmnt -no SOURCE /srv) == /dev/@(ublkb|nbd)* ]]
serves first
write &
writer=$!
within 120 "files are written" has_written_more 3
upgrade
refuse_settings
refuse_removal
kill -0 "$writer"
touch /tmp/stop
wait "$writer"
systemctl stop srv.mount
refuse_loss
remove
# The disk that refuses writes has the other device.
if dmesg | grep -E 'I/O error, dev (ublkb|nbd)0|Remounting'; then exit 1; fi
say "all passed"
systemctl poweroff --force --force
