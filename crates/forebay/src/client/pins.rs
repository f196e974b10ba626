//! `forebay pin` and `forebay unpin`.

mod device;
mod file;
mod follow;
mod map;
mod proof;

use super::{connect, named};
use crate::arguments::{PinArguments, UnpinArguments};
use crate::report::{misconfigured, print, warn, with_remedy};
use anyhow::anyhow;
use file::{Target, locate, path_of};
use forebay_api::{BlockingClient, ClientError, PinState, VolumeStatus};
use forebay_config::parse_pinned_ranges;
use forebay_terminal::units::bytes;
use forebay_types::PinnedRanges;
use map::FileMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// `forebay pin`.
pub(crate) fn pin(arguments: &PinArguments) -> anyhow::Result<()> {
    let mut places = Places::parse(&arguments.ranges)?;
    if arguments.follow.is_some() && !places.ranges.is_empty() {
        let error = anyhow!("ranges stay where they are, and cannot be followed");
        return Err(misconfigured(error, "pin them with another command, without --follow"));
    }
    let client = connect(&arguments.state)?;
    let target = places.locate(&client, &arguments.name)?;
    let wanted = places.all();
    if let Some(seconds) = arguments.follow {
        return follow::follow(&client, target, places.files, seconds);
    }
    if wanted.is_empty() {
        let error = anyhow!("no data of the files is on the disk");
        return Err(with_remedy(error, "pin them when they are written, or use --follow"));
    }
    let request = forebay_control::pin_request(&wanted);
    let volume = client.pin_volume(&arguments.name, &request)?;
    print(&sentence(&volume))
}

/// `forebay unpin`.
pub(crate) fn unpin_places(arguments: &UnpinArguments) -> anyhow::Result<()> {
    let mut places = Places::parse(&arguments.ranges)?;
    let client = connect(&arguments.state)?;
    places.locate(&client, &arguments.name)?;
    let volume = match places.all() {
        // The files have no data on the disk.
        ranges if ranges.is_empty() => client.volume(&arguments.name)?,
        ranges => unpin(&client, &arguments.name, &ranges)?,
    };
    print(&sentence(&volume))
}

fn unpin(
    client: &BlockingClient,
    name: &str,
    ranges: &PinnedRanges,
) -> Result<VolumeStatus, ClientError> {
    client.unpin_volume(name, &forebay_control::pin_request(ranges))
}

/// The files of a command: each with the number of its device and its place in the volume.
#[derive(Debug, Default)]
struct Files(Vec<(PathBuf, u64, FileMap)>);

impl Files {
    fn ranges(&self) -> PinnedRanges {
        self.0.iter().fold(PinnedRanges::default(), |all, (_, _, map)| all.with(&map.ranges))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut (PathBuf, u64, FileMap)> {
        self.0.iter_mut()
    }
}

/// The ranges and files that a command names.
struct Places {
    ranges: PinnedRanges,
    files: Files,
}

impl Places {
    /// Checks the ranges, so that a mistake is reported even if no daemon runs.
    fn parse(arguments: &[OsString]) -> anyhow::Result<Self> {
        let files = arguments.iter().filter_map(|argument| path_of(argument));
        let files = files.map(|path| (path, 0, FileMap::default())).collect();
        let ranges = arguments.iter().filter(|argument| path_of(argument).is_none());
        let ranges: Vec<_> = ranges.map(|argument| argument.to_string_lossy()).collect();
        let ranges = parse_pinned_ranges(ranges.iter().map(|text| &**text))?;
        Ok(Self { ranges, files: Files(files) })
    }

    /// Finds the files in the volume, and prints where they are.
    fn locate(&mut self, client: &BlockingClient, name: &str) -> anyhow::Result<Target> {
        let mut target = Target { name: name.to_owned(), size_bytes: 0, listeners: Vec::new() };
        if self.files.0.is_empty() {
            return Ok(target);
        }
        target.size_bytes = client.volume(name)?.size_bytes;
        target.listeners = client.status()?.listeners;
        for (path, device, map) in self.files.iter_mut() {
            let found = locate(path, &target)?;
            let count = match found.map.ranges.len() {
                1 => "1 range".to_owned(),
                count => format!("{count} ranges"),
            };
            let size = bytes(found.map.ranges.lines() * forebay_types::LINE_BYTES);
            let left_out = match found.map.left_out() {
                text if text.is_empty() => text,
                text => format!("; not pinned: {text}"),
            };
            let (path, volume) = (path.display(), named(name));
            print(&format!("{path} has {size} in {count} of {volume}{left_out}\n"))?;
            if let Some(reason) = found.unproven {
                warn(&format!("{path} was not compared with {volume}: {reason}"));
            }
            (*device, *map) = (found.device, found.map);
        }
        Ok(target)
    }

    fn all(&self) -> PinnedRanges {
        self.ranges.with(&self.files.ranges())
    }
}

/// The pinned ranges of a volume.
fn pinned_ranges(volume: &VolumeStatus) -> PinnedRanges {
    match ranges(volume) {
        "none" => PinnedRanges::default(),
        // The server may have another version, whose ranges this program cannot parse.
        text => parse_pinned_ranges(text.split(',')).unwrap_or_default(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::PinStatus;

    fn volume(name: &str, pin: &str, pins: PinStatus) -> VolumeStatus {
        let settings = [("pin", pin)].into();
        VolumeStatus { name: name.into(), settings, pins, ..VolumeStatus::default() }
    }

    #[test]
    fn the_result_of_a_change_says_what_is_in_memory() {
        let loading = PinStatus {
            state: PinState::Loading,
            pinned_bytes: 3 << 20,
            loaded_bytes: 1 << 20,
            ..PinStatus::default()
        };
        let told = "3.0 MiB of volume 'a' are pinned, 1.0 MiB of them in memory: \
                    0B+1MiB,8MiB+2MiB\n";
        assert_eq!(sentence(&volume("a", "0B+1MiB,8MiB+2MiB", loading)), told);
        let none = volume("c", "none", PinStatus::default());
        assert_eq!(sentence(&none), "volume 'c' has no pinned ranges\n");
    }
}
