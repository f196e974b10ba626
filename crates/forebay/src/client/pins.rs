//! `forebay pin` and `forebay unpin`, and the table of pinned ranges.

use super::columns::{lines, table};
use super::units::bytes;
use super::{connect, named};
use crate::cli::PinArguments;
use crate::report::print;
use forebay_api::{BlockingClient, ClientError, PinRequest, PinState, VolumeStatus};
use forebay_config::parse_pinned_ranges;

/// The maximum width of a volume's ranges in the table, in characters.
const RANGES_WIDTH_MAX: usize = 40;

/// `forebay pin`.
pub(crate) fn pin(arguments: &PinArguments) -> anyhow::Result<()> {
    change(arguments, BlockingClient::pin_volume)
}

/// `forebay unpin`.
pub(crate) fn unpin(arguments: &PinArguments) -> anyhow::Result<()> {
    change(arguments, BlockingClient::unpin_volume)
}

type Change = fn(&BlockingClient, &str, &PinRequest) -> Result<VolumeStatus, ClientError>;

/// Checks the ranges first, so that a mistake is reported even if no daemon runs.
fn change(arguments: &PinArguments, change: Change) -> anyhow::Result<()> {
    let ranges = parse_pinned_ranges(arguments.ranges.iter().map(String::as_str))?;
    let client = connect(&arguments.state)?;
    let volume = change(&client, &arguments.name, &forebay_control::pin_request(&ranges))?;
    print(&sentence(&volume))
}

/// The pinned ranges of a volume as text.
fn ranges(volume: &VolumeStatus) -> &str {
    let pin = volume.settings.pairs().find(|(setting, _)| setting.key == "pin");
    pin.map_or("none", |(_, text)| text)
}

/// The result of a change, in a sentence.
fn sentence(volume: &VolumeStatus) -> String {
    let (name, pins) = (named(&volume.name), &volume.pins);
    match pins.state {
        PinState::None => format!("{name} has no pinned ranges\n"),
        _ => format!(
            "{} of {name} are pinned, {} of them in memory: {}\n",
            bytes(pins.pinned_bytes),
            bytes(pins.loaded_bytes),
            ranges(volume)
        ),
    }
}

/// The table after an empty line, with the volumes that have pinned ranges, and notes on those that
/// were refused. Empty without any.
pub(super) fn pins(volumes: &[VolumeStatus]) -> String {
    let shown = || volumes.iter().filter(|volume| volume.pins.state != PinState::None);
    if shown().next().is_none() {
        return String::new();
    }
    let mut table = table(["PINS OF", "STATE", "PINNED", "IN MEMORY", "RANGES"]);
    let mut notes = String::new();
    for volume in shown() {
        let VolumeStatus { name, pins, .. } = volume;
        let mut ranges = ranges(volume).to_owned();
        if ranges.len() > RANGES_WIDTH_MAX {
            // The text is ASCII.
            ranges.truncate(RANGES_WIDTH_MAX - 3);
            ranges.push_str("...");
        }
        table.add_row([
            name.clone(),
            pins.state.to_string(),
            bytes(pins.pinned_bytes),
            bytes(pins.loaded_bytes),
            ranges,
        ]);
        let reason = pins.state_reason.iter();
        notes.extend(reason.map(|reason| format!("\n{name}: not pinned: {reason}")));
    }
    let end = if notes.is_empty() { "" } else { "\n" };
    format!("\n{}{notes}{end}", lines(table, &[0, 1, 4]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::PinStatus;

    fn volume(name: &str, pin: &str, pins: PinStatus) -> VolumeStatus {
        let settings = [("pin", pin)].into();
        VolumeStatus { name: name.into(), settings, pins, ..VolumeStatus::default() }
    }

    #[test]
    fn pinned_ranges_are_shown_with_what_is_in_memory() {
        let loading = PinStatus {
            state: PinState::Loading,
            pinned_bytes: 3 << 20,
            loaded_bytes: 1 << 20,
            ..PinStatus::default()
        };
        let refused = PinStatus {
            state: PinState::Refused,
            state_reason: Some("it has 4 bytes: pin less".into()),
            ..PinStatus::default()
        };
        let many = ["16TiB+4KiB"; 5].join(",");
        let volumes = [
            volume("a", "0B+1MiB,8MiB+2MiB", loading),
            volume("b", &many, refused),
            volume("c", "none", PinStatus::default()),
        ];
        assert_eq!(
            pins(&volumes),
            "\nPINS OF  STATE     PINNED  IN MEMORY  RANGES\n\
             a        loading  3.0 MiB    1.0 MiB  0B+1MiB,8MiB+2MiB\n\
             b        refused      0 B        0 B  16TiB+4KiB,16TiB+4KiB,16TiB+4KiB,16Ti...\n\n\
             b: not pinned: it has 4 bytes: pin less\n"
        );
        assert_eq!(pins(&volumes[2..]), "");
        let told = "3.0 MiB of volume 'a' are pinned, 1.0 MiB of them in memory: \
                    0B+1MiB,8MiB+2MiB\n";
        assert_eq!(sentence(&volumes[0]), told);
        assert_eq!(sentence(&volumes[2]), "volume 'c' has no pinned ranges\n");
    }
}
