//! The table of forecasts: what volumes will probably need, and whether earlier forecasts were
//! used.

use super::columns::lines;
use super::units::bytes;
use comfy_table::{Table, presets};
use forebay_api::VolumeStatus;

/// The volumes that have a forecast, after an empty line. Empty if there are none.
pub(super) fn learn(volumes: &[VolumeStatus]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["LEARNED OF", "STATE", "NEXT", "BYTES", "LAST", "PRELOADED", "USED"]);
    let has_one = |volume: &&VolumeStatus| volume.learn.forecast.is_some();
    let shown: Vec<_> = volumes.iter().filter(has_one).collect();
    for VolumeStatus { name, learn, .. } in &shown {
        let forecast = learn.forecast.clone().unwrap_or_default();
        let score = learn.score.as_ref();
        let of_score = |cell: fn(&forebay_api::ForecastScore) -> String| {
            score.map_or_else(|| "-".to_owned(), cell)
        };
        table.add_row([
            name.clone(),
            learn.state.to_string(),
            forecast.slot,
            bytes(forecast.bytes),
            of_score(|score| score.slot.clone()),
            of_score(|score| bytes(score.preloaded_bytes)),
            of_score(|score| bytes(score.used_bytes)),
        ]);
    }
    if shown.is_empty() { String::new() } else { format!("\n{}", lines(table, &[0, 1, 2, 4])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{ForecastScore, ForecastStatus, LearnState, LearnStatus};

    #[test]
    fn forecasts_are_shown_with_their_score() {
        let slot = |hour: &str| format!("Mon {hour}");
        let learn = LearnStatus {
            enabled: true,
            state: LearnState::Learning,
            forecast: Some(ForecastStatus {
                slot: slot("09:15"),
                bytes: 48 << 20,
                ..ForecastStatus::default()
            }),
            ..LearnStatus::default()
        };
        let scored = LearnStatus {
            score: Some(ForecastScore {
                slot: slot("09:00"),
                preloaded_bytes: 1 << 30,
                used_bytes: 4096,
            }),
            ..learn.clone()
        };
        let volume = |name: &str, learn| VolumeStatus {
            name: name.into(),
            learn,
            ..VolumeStatus::default()
        };
        let shown =
            super::learn(&[VolumeStatus::default(), volume("a", learn), volume("b", scored)]);
        let rows =
            shown.lines().skip(2).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let expected = [
            "a learning Mon 09:15 48 MiB - - -",
            "b learning Mon 09:15 48 MiB Mon 09:00 1.0 GiB 4.0 KiB",
        ];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
        assert_eq!(super::learn(&[VolumeStatus::default()]), "");
    }
}
