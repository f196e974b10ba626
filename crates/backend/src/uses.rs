//! Where block devices are in use.

use std::fs::{read_dir, read_to_string};
use std::path::Path;

/// Where a block device and its partitions are in use, such as `mounted at /srv` or `used by md0`.
/// `place` is the device's directory in sysfs, such as `/sys/dev/block/8:0`, and `root` that of the
/// machine, `/`.
pub fn device_uses(root: &Path, place: &Path) -> Vec<String> {
    let Ok(directory) = place.canonicalize() else { return Vec::new() };
    let mounts = read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let parts = names_in(&directory).into_iter().filter(|part| part.starts_with(&name));
    let mut uses = Vec::new();
    for place in parts.map(|part| directory.join(part)).chain([directory.clone()]) {
        let number = read_to_string(place.join("dev")).unwrap_or_default();
        uses.extend(mounts.lines().filter_map(|line| mounted_at(line, number.trim())));
        uses.extend(names_in(&place.join("holders")).iter().map(|it| format!("used by {it}")));
    }
    uses
}

/// Where a device is mounted, from a line of `/proc/self/mountinfo`.
fn mounted_at(line: &str, number: &str) -> Option<String> {
    let mut fields = line.split(' ').skip(2);
    let is_device = fields.next() == Some(number);
    let at = fields.nth(1)?;
    is_device.then(|| format!("mounted at {at}"))
}

/// The sorted names in a directory; none if it cannot be read.
pub fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
