//! The table of writeback: how client writes were combined into writes to the disks.

use super::columns::{lines, table};
use super::units::{bytes, count};
use forebay_api::VolumeStatus;

/// The volumes that have written back, after an empty line. Empty if there are none.
pub(super) fn write_back(volumes: &[VolumeStatus]) -> String {
    let mut table = table([
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
    let active: Vec<_> = volumes.iter().filter(|volume| volume.write_back.writes > 0).collect();
    for volume in &active {
        let (input, output) = (&volume.counters, &volume.write_back);
        let mean = |bytes: u64, writes: u64| bytes / writes.max(1);
        table.add_row([
            volume.name.clone(),
            bytes(mean(input.write_bytes, input.writes)),
            bytes(mean(output.bytes, output.writes)),
            format!("{:.1}", input.writes as f64 / output.writes as f64),
            match volume.geometry.stripe_bytes {
                0 => "-".to_owned(),
                _ => count(output.whole_stripes),
            },
            count(output.urgent),
            count(output.normal),
            count(output.waits),
            format!("{:.1} s", output.mean_dirty_ms as f64 / 1000.0),
        ]);
    }
    if active.is_empty() { String::new() } else { format!("\n{}", lines(table, &[0])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{Counters, GeometryStatus, WriteBackFigures};

    #[test]
    fn mean_sizes_and_their_ratio_are_shown() {
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
