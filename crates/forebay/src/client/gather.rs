//! The table of the write sizes that are worth gathering.

use super::columns::{lines, table};
use super::units::{bytes, micros};
use forebay_api::{GatherStatus, VolumeStatus};
use forebay_types::Size;

/// The table after an empty line: each volume with the size, its source, and the measured cost of
/// an I/O. Empty if there are no volumes.
pub(super) fn gather(volumes: &[VolumeStatus]) -> String {
    if volumes.is_empty() {
        return String::new();
    }
    let mut table = table(["WRITES OF", "WORTH GATHERING", "AN I/O TAKES"]);
    for volume in volumes {
        table.add_row([volume.name.clone(), worth(&volume.gather), cost(&volume.gather)]);
    }
    format!("\n{}", lines(table, &[0, 1, 2]))
}

/// Size and cost in one sentence.
pub(super) fn summary(gather: &GatherStatus) -> String {
    format!("writes worth gathering: {}; an I/O takes {}", worth(gather), cost(gather))
}

fn worth(gather: &GatherStatus) -> String {
    match gather.below_bytes {
        0 => format!("none ({})", gather.source),
        bytes => format!("below {} ({})", Size(bytes), gather.source),
    }
}

/// The measured cost of an I/O, and why there is no measurement, or no newer one.
fn cost(gather: &GatherStatus) -> String {
    let fixed_us = gather.fixed_us.map(|us| us.round() as u64);
    let measured = fixed_us.map(|us| match gather.bytes_per_second {
        Some(speed) => format!("{} + its size at {}/s", micros(us), bytes(speed)),
        None => format!("{}, whatever its size", micros(us)),
    });
    let reason = gather.not_measured.as_ref().map(|reason| format!("not measured: {reason}"));
    measured.into_iter().chain(reason).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::GatherSource;

    const TABLE: &str = "
WRITES OF  WORTH GATHERING         AN I/O TAKES
hdd        below 8MiB (measured)   12 ms + its size at 120 MiB/s
fixed      below 32MiB (measured)  2.0 ms, whatever its size; not measured: why not
off        none (set by hand)      not measured: gather-below is set
bad        below 64KiB (default)   not measured: I/O error
";

    #[test]
    fn each_volume_shows_which_writes_are_worth_gathering_and_why() {
        let volume = |name: &str, gather| VolumeStatus {
            name: name.into(),
            gather,
            ..VolumeStatus::default()
        };
        let measured = |below_bytes, fixed_us, bytes_per_second| GatherStatus {
            below_bytes,
            source: GatherSource::Measured,
            measured_below_bytes: Some(below_bytes),
            fixed_us: Some(fixed_us),
            bytes_per_second,
            not_measured: None,
        };
        let not = |below_bytes, source, reason: &str| GatherStatus {
            below_bytes,
            source,
            not_measured: Some(reason.into()),
            ..GatherStatus::default()
        };
        let hdd = measured(8 << 20, 12_400.0, Some(120 << 20));
        let fixed = GatherStatus {
            not_measured: Some("why not".into()),
            ..measured(32 << 20, 2000.0, None)
        };
        let volumes = [
            volume("hdd", hdd.clone()),
            volume("fixed", fixed),
            volume("off", not(0, GatherSource::SetByHand, "gather-below is set")),
            volume("bad", not(64 << 10, GatherSource::Default, "I/O error")),
        ];
        assert_eq!(gather(&volumes), TABLE);
        assert_eq!(gather(&[]), "");
        assert_eq!(
            summary(&hdd),
            "writes worth gathering: below 8MiB (measured); an I/O takes 12 ms + its size at 120 \
             MiB/s"
        );
        let quick = measured(4096, 999.4, None);
        assert!(summary(&quick).ends_with("999 us, whatever its size"));
    }
}
