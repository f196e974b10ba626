//! The table of the governors: latency of reads beside writeback, and the rate of writeback.

use super::columns::{lines, table};
use super::units::{count, micros};
use forebay_api::VolumeStatus;

/// The volumes that have written back, after an empty line. Empty if there are none.
pub(super) fn governor(volumes: &[VolumeStatus]) -> String {
    let mut table = table([
        "READS BESIDE WRITEBACK OF",
        "IDLE P99",
        "TARGET P99",
        "P99",
        "BURSTS/S",
        "RAISED",
        "LOWERED",
    ]);
    let active: Vec<_> = volumes.iter().filter(|volume| volume.write_back.writes > 0).collect();
    for volume in &active {
        let governor = &volume.write_back.governor;
        let time = |us: Option<u64>| us.map_or("-".to_owned(), micros);
        let wanted = match governor.target_p99_us {
            Some(us) => format!("{} ({})", micros(us), governor.read_latency),
            None => governor.read_latency.clone(),
        };
        table.add_row([
            volume.name.clone(),
            time(governor.idle_p99_us),
            wanted,
            time(governor.beside_p99_us),
            governor.bursts_per_second.map_or("any".to_owned(), |rate| format!("{rate:.1}")),
            count(governor.raised),
            count(governor.lowered),
        ]);
    }
    if active.is_empty() { String::new() } else { format!("\n{}", lines(table, &[0])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{GovernorStatus, WriteBackFigures};

    #[test]
    fn latencies_and_the_rate_of_writeback_are_shown() {
        let governed = |governor| VolumeStatus {
            name: "v".into(),
            write_back: WriteBackFigures { writes: 1, governor, ..WriteBackFigures::default() },
            ..VolumeStatus::default()
        };
        let busy = GovernorStatus {
            read_latency: "idle".into(),
            idle_p99_us: Some(14_000),
            target_p99_us: Some(17_600),
            beside_p99_us: Some(8_500),
            bursts_per_second: Some(1.25),
            raised: 7,
            lowered: 2,
        };
        let off = GovernorStatus { read_latency: "off".into(), ..GovernorStatus::default() };
        let shown = governor(&[governed(busy), governed(off), VolumeStatus::default()]);
        let words = |at| shown.lines().nth(at).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(shown.lines().count(), 4);
        assert_eq!(words(2).join(" "), "v 14 ms 18 ms (idle) 8.5 ms 1.2 7 2");
        assert_eq!(words(3), ["v", "-", "off", "-", "any", "0", "0"]);
        assert_eq!(governor(&[VolumeStatus::default()]), "");
    }
}
