//! Whether a device is in use.

use crate::record::AttachedVolume;
use anyhow::Error;
use forebay_terminal::with_remedy;
use rustix::fs::{Mode, OFlags};

/// Refuses a device that is mounted, or that something else holds.
pub(crate) fn check_unused(attached: &AttachedVolume) -> anyhow::Result<()> {
    let device = attached.device();
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(&device, flags, Mode::empty()) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::BUSY) => {
            let name = attached.device_name();
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            let places = mounts_of(&mounts, &name, &attached.link().display().to_string());
            let (by, remedy) = match places.is_empty() {
                false => (
                    format!("mounted on {}", places.join(", ")),
                    format!("unmount it with `umount {}`", places[0]),
                ),
                true => {
                    let remedy = "stop what uses it: see `lsblk`, `dmsetup table`, `swapon`";
                    ("held by another program or device".to_owned(), remedy.to_owned())
                }
            };
            let message =
                format!("volume '{}' is in use: {} is {by}", attached.volume, device.display());
            Err(with_remedy(Error::msg(message), remedy))
        }
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NXIO) => Ok(()),
        Err(error) => Err(Error::new(error).context(format!("cannot open {}", device.display()))),
    }
}

/// Has the kernel write what it caches of the device.
pub(crate) fn flush(attached: &AttachedVolume) -> anyhow::Result<()> {
    let device = attached.device();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let flushed = rustix::fs::open(&device, flags, Mode::empty())
        .and_then(|device| rustix::fs::fsync(&device));
    flushed.map_err(|error| {
        let error = Error::new(error).context(format!("cannot flush {}", device.display()));
        let remedy = "its disk may not take data, or its volume is not served any more: see \
                      `forebay status`, or use --force to give up what is not written";
        with_remedy(error, remedy)
    })
}

/// Where a device, or a partition of it, is mounted.
fn mounts_of(mounts: &str, device: &str, link: &str) -> Vec<String> {
    let lines = mounts.lines().filter_map(|line| line.split_once(' '));
    let places = lines.filter(|(source, _)| *source == link || is_part_of(source, device));
    places.filter_map(|(_, rest)| Some(rest.split(' ').next()?.to_owned())).collect()
}

/// Whether a path is that of a device or of a partition of it.
fn is_part_of(path: &str, device: &str) -> bool {
    let rest = path.strip_prefix("/dev/").and_then(|name| name.strip_prefix(device));
    match rest.map(|rest| (rest, rest.strip_prefix('p'))) {
        Some(("", _)) => true,
        Some((_, Some(number))) => number.bytes().all(|byte| byte.is_ascii_digit()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_the_device_and_its_partitions_are_found() {
        let mounts = "/dev/ublkb1 /srv ext4 rw 0 0\n/dev/ublkb1p2 /two xfs rw 0 0\n\
            /dev/ublkb10 /ten ext4 rw 0 0\n\
            /dev/forebay/db /db ext4 rw 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(mounts_of(mounts, "ublkb1", "/dev/forebay/db"), ["/srv", "/two", "/db"]);
        assert_eq!(mounts_of(mounts, "ublkb2", "/dev/forebay/x"), Vec::<String>::new());
    }
}
