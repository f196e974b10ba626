//! How what was written got to the disks, as a table for people.

use super::columns::lines;
use super::units::{bytes, count};
use comfy_table::{Table, presets};
use forebay_api::VolumeStatus;

/// The volumes of which something was written back, one a line below an empty one; nothing where
/// there are none.
pub(super) fn write_back(volumes: &[VolumeStatus]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "WRITTEN BACK OF",
        "IN",
        "OUT",
        "WRITES PER WRITE",
        "WHOLE STRIPES",
        "URGENT",
        "NORMAL",
        "WAITS",
        "DIRTY FOR",
    ]);
    let some: Vec<_> = volumes.iter().filter(|volume| volume.write_back.writes > 0).collect();
    for volume in &some {
        let (came, went) = (&volume.counters, &volume.write_back);
        let mean = |bytes: u64, writes: u64| bytes / writes.max(1);
        table.add_row([
            volume.name.clone(),
            bytes(mean(came.write_bytes, came.writes)),
            bytes(mean(went.bytes, went.writes)),
            format!("{:.1}", came.writes as f64 / went.writes as f64),
            match volume.geometry.stripe_bytes {
                0 => "-".to_owned(),
                _ => count(went.whole_stripes),
            },
            count(went.urgent),
            count(went.normal),
            count(went.waits),
            format!("{:.1} s", went.mean_dirty_ms as f64 / 1000.0),
        ]);
    }
    if some.is_empty() { String::new() } else { format!("\n{}", lines(table, &[0])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{Counters, GeometryStatus, WriteBackFigures};

    #[test]
    fn what_came_in_small_and_went_out_whole_is_shown() {
        let array = VolumeStatus {
            name: "array".into(),
            geometry: GeometryStatus { stripe_bytes: 112 << 10, ..GeometryStatus::default() },
            counters: Counters { writes: 2800, write_bytes: 2800 << 12, ..Counters::default() },
            write_back: WriteBackFigures {
                writes: 100,
                bytes: 100 * (112 << 10),
                whole_stripes: 100,
                urgent: 4,
                normal: 96,
                waits: 2,
                mean_dirty_ms: 1260,
                ..WriteBackFigures::default()
            },
            ..VolumeStatus::default()
        };
        let shown = write_back(&[array, VolumeStatus::default()]);
        let row = shown.lines().nth(2).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        let (in_and_out, rest) = words[1..].split_at(words.len() - 8);
        assert_eq!(words[0], "array");
        assert_eq!(in_and_out.concat(), "4.0KiB112KiB", "{shown}");
        assert_eq!(rest, ["28.0", "100", "4", "96", "2", "1.3", "s"], "{shown}");
        assert_eq!(shown.lines().count(), 3);
        assert_eq!(write_back(&[VolumeStatus::default()]), "");
    }
}
