#!/bin/busybox sh
# Init process of the initramfs that scripts/service.sh boots: mounts the guest's disk and starts
# its systemd.
# shellcheck shell=sh
set -eu
/bin/busybox --install -s /bin
export PATH=/bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in crc32c_generic virtio_pci virtio_blk ext4; do modprobe "$module"; done
# The guest has one of the two.
modprobe -q ublk_drv || modprobe nbd
mount -t ext4 /dev/vda /mnt
mount --move /dev /mnt/dev
umount /proc /sys
exec switch_root /mnt /sbin/init
