//! The table of the volumes' disks: geometry, with the source of each value.

use super::columns::{lines, table};
use forebay_api::{GeometrySource, VolumeStatus};
use forebay_types::Size;

/// The table after an empty line. Empty if there are no volumes.
pub(super) fn disks(volumes: &[VolumeStatus]) -> String {
    if volumes.is_empty() {
        return String::new();
    }
    let mut table = table(["DISK OF", "STRIPE", "CHUNK", "STRIPES FROM", "BEST I/O", "ROTATIONAL"]);
    for volume in volumes {
        let disk = &volume.geometry;
        let has_stripes = disk.stripe_bytes > 0;
        let size = |is_known: bool, bytes: u64, source| {
            if is_known { value(Size(bytes), source) } else { no_value(source) }
        };
        let rotational = match disk.rotational {
            None => no_value(disk.rotational_source),
            Some(is) => value(if is { "yes" } else { "no" }, disk.rotational_source),
        };
        let best = disk.optimal_bytes;
        table.add_row([
            volume.name.clone(),
            size(has_stripes, disk.stripe_bytes, disk.stripe_source),
            size(disk.chunk_bytes > 0, disk.chunk_bytes, disk.chunk_source),
            size(has_stripes, disk.stripe_offset_bytes, disk.stripe_offset_source),
            if best > 0 { Size(best).to_string() } else { "unknown".to_owned() },
            rotational,
        ]);
    }
    format!("\n{}", lines(table, &[0, 1, 2, 3, 4, 5]))
}

fn value(value: impl std::fmt::Display, source: GeometrySource) -> String {
    format!("{value} ({source})")
}

/// `unknown`, or `none` if a source reports that there is no such value.
fn no_value(source: GeometrySource) -> String {
    match source {
        GeometrySource::Unknown => "unknown".to_owned(),
        _ => value("none", source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::GeometryStatus;

    const TABLE: &str = "
DISK OF  STRIPE                CHUNK           STRIPES FROM    BEST I/O  ROTATIONAL
array    112KiB (set by hand)  16KiB (device)  512B (unknown)  112KiB    yes (device)
b        none (set by hand)    unknown         unknown         unknown   unknown
c        unknown               unknown         unknown         unknown   unknown
";

    #[test]
    fn each_value_is_shown_with_its_source() {
        let volume = |name: &str, geometry| VolumeStatus {
            name: name.into(),
            geometry,
            ..VolumeStatus::default()
        };
        let array = GeometryStatus {
            stripe_bytes: 112 << 10,
            stripe_source: GeometrySource::SetByHand,
            chunk_bytes: 16 << 10,
            chunk_source: GeometrySource::Device,
            stripe_offset_bytes: 512,
            optimal_bytes: 112 << 10,
            rotational: Some(true),
            rotational_source: GeometrySource::Device,
            ..GeometryStatus::default()
        };
        let none = GeometryStatus {
            stripe_source: GeometrySource::SetByHand,
            ..GeometryStatus::default()
        };
        let volumes =
            [volume("array", array), volume("b", none), volume("c", GeometryStatus::default())];
        assert_eq!(disks(&volumes), TABLE);
        assert_eq!(disks(&[]), "");
    }
}
