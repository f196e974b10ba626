//! The table of the warm-ups: what is read into memory after a start, and whether it is used.

use super::columns::lines;
use super::units::bytes;
use comfy_table::{Table, presets};
use forebay_api::{VolumeStatus, WarmUpState};

/// The volumes that had a warm-up, after an empty line. Empty if there are none.
pub(super) fn warm_up(volumes: &[VolumeStatus]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["WARM-UP OF", "STATE", "DONE", "OF", "USED", "IN VAIN"]);
    let has_one = |volume: &&VolumeStatus| volume.warm_up.state != WarmUpState::None;
    let shown: Vec<_> = volumes.iter().filter(has_one).collect();
    for VolumeStatus { name, warm_up, counters, .. } in &shown {
        table.add_row([
            name.clone(),
            warm_up.state.to_string(),
            bytes(warm_up.done_bytes),
            bytes(warm_up.planned_bytes),
            bytes(counters.preload_used_bytes),
            bytes(counters.preload_in_vain_bytes),
        ]);
    }
    if shown.is_empty() { String::new() } else { format!("\n{}", lines(table, &[0, 1])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{Counters, WarmUpStatus};

    #[test]
    fn warm_ups_are_shown_with_their_score() {
        let warm_up = WarmUpStatus {
            enabled: true,
            state: WarmUpState::Loading,
            planned_bytes: 3 << 30,
            done_bytes: 1 << 30,
        };
        let counters = Counters {
            preload_used_bytes: 512 << 20,
            preload_in_vain_bytes: 4096,
            ..Counters::default()
        };
        let warm = VolumeStatus { name: "v".into(), warm_up, counters, ..VolumeStatus::default() };
        let shown = super::warm_up(&[VolumeStatus::default(), warm]);
        assert_eq!(shown.lines().count(), 3);
        let row = shown.lines().nth(2).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row.join(" "), "v loading 1.0 GiB 3.0 GiB 512 MiB 4.0 KiB");
        assert_eq!(super::warm_up(&[VolumeStatus::default()]), "");
    }
}
