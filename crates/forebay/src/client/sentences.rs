//! Sentences about the server and its volumes.

use forebay_api::{
    CacheRatio, Discarded, DrillReport, Latencies, Memory, VolumeSize, VolumeState, VolumeStatus,
};
use forebay_attach::FollowedDevice;
use forebay_terminal::units::bytes;
use forebay_types::Size;

/// The limit of the memory, and its maximum if that is larger.
pub(super) fn memory_limit(memory: &Memory) -> String {
    let limit = bytes(memory.limit_bytes);
    match memory.limit_bytes_max > memory.limit_bytes {
        true => format!("limit {limit}, at most {}", bytes(memory.limit_bytes_max)),
        false => format!("limit {limit}"),
    }
}

/// The shares of the cache in a few words: `33 % for reads, 67 % (60 MiB) for writes`.
pub(super) fn shares(ratio: &CacheRatio) -> String {
    let CacheRatio { read_percent, write_percent, .. } = ratio;
    let limit = bytes(ratio.write_bytes);
    format!("{read_percent} % for reads, {write_percent} % ({limit}) for writes")
}

/// The size of a volume whose disk was measured again, and what its block device makes of it.
pub(super) fn size(name: &str, size: &VolumeSize, device: Option<&FollowedDevice>) -> String {
    let VolumeSize { size_bytes, former_bytes } = *size;
    let (now, has_grown) = (Size(size_bytes), size_bytes != former_bytes);
    let volume = match has_grown {
        true => format!("volume '{name}' has grown from {} to {now}\n", Size(former_bytes)),
        false => format!("volume '{name}' has {now}, as before\n"),
    };
    let device = match device {
        Some(FollowedDevice { device, obstacle: Some(obstacle) }) => {
            format!("{device} keeps its size: {obstacle}\n")
        }
        Some(FollowedDevice { device, obstacle: None }) if has_grown => {
            format!("{device} has grown with it\n")
        }
        _ => String::new(),
    };
    volume + &device
}

/// What was given up with a volume.
pub(super) fn discarded(name: &str, discarded: &Discarded) -> String {
    let lost = bytes(discarded.bytes);
    let what = match &discarded.saved_to {
        _ if discarded.bytes == 0 => "; its disk lacks nothing that was in memory\n".to_owned(),
        None => format!("; {lost} given up\n"),
        Some(path) => format!(
            "; {lost} that its disk lacks are in {path}\n\
             to write them to a disk: forebay rescue apply {path} --volume {name} --to DISK \
             --accept-older\n"
        ),
    };
    let more = match discarded.may_lack_more {
        true => "further data may be missing: the disk failed a flush after it was written\n",
        false => "",
    };
    format!("volume '{name}' is removed{what}{more}")
}

/// The report of a drill.
pub(super) fn drill(report: &DrillReport) -> String {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    let latencies = |latencies: &Latencies| {
        format!(
            "reads from memory {:.0}, reads from disk {:.0}, writes {:.0} us",
            latencies.read_hit.mean_us, latencies.read_miss.mean_us, latencies.write.mean_us
        )
    };
    let test = if report.test_data { " of test data" } else { "" };
    format!(
        "drill of {}: {}\n\
         dirty: {}, saved: {}{test}, stable after {} ({}/s; measured: {}), disks flushed \
         after {}, read back after {}\n\
         read back: {}, {} as in memory, {} changed meanwhile, {} failures of the vault\n\
         battery: {}, dirty limit: {}\n\
         clients before: {}\n\
         clients during: {}\n\
         report: {}\n",
        report.begun_at,
        report.verdict,
        bytes(report.dirty_bytes),
        bytes(report.bytes),
        seconds(report.write_ms),
        bytes(report.bytes_per_second),
        or_unknown(report.measured_bytes_per_second.map(|rate| format!("{}/s", bytes(rate)))),
        seconds(report.disks_ms),
        seconds(report.total_ms),
        if report.verified { "verified" } else { "NOT VERIFIED" },
        bytes(report.same_bytes),
        bytes(report.changed_bytes),
        report.failures,
        or_unknown(report.battery_seconds.map(|seconds| format!("{seconds} s"))),
        or_unknown(report.dirty_bytes_max.map(bytes)),
        latencies(&report.latency_before),
        latencies(&report.latency_during),
        report.path.as_deref().unwrap_or("not kept; see the log"),
    )
}

/// One volume in a few words: `1.0 GiB, write-through`.
pub(super) fn summary(volume: &VolumeStatus) -> String {
    let read_only = if volume.read_only { ", read-only" } else { "" };
    let frozen = if volume.frozen { ", frozen" } else { "" };
    let mut text = format!("{}, {}{read_only}{frozen}", bytes(volume.size_bytes), volume.mode);
    if let Some(note) = mode_note(volume) {
        text += &format!("; {note}");
    }
    if let Some(reason) = &volume.pins.state_reason {
        text += &format!("; its ranges are not pinned: {reason}");
    }
    let notes = volume.geometry.notes.iter().chain(&volume.notes);
    notes.for_each(|note| text += &format!("; {note}"));
    text
}

/// The state in a word: `frozen` only if nothing is wrong.
pub(super) fn state(volume: &VolumeStatus) -> String {
    match volume.state {
        VolumeState::Serving if volume.frozen => "frozen".to_owned(),
        state => state.to_string(),
    }
}

/// How the effective mode differs from the configured one, and why; `None` if it does not.
pub(super) fn mode_note(volume: &VolumeStatus) -> Option<String> {
    let reason = volume.effective_mode_reason.as_ref();
    (volume.mode != volume.effective_mode).then(|| {
        let reason = reason.map(|reason| format!(", {reason}")).unwrap_or_default();
        format!("{} instead of {}{reason}", volume.effective_mode, volume.mode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::Mode;

    #[test]
    fn the_growth_of_a_volume_says_whether_its_device_follows() {
        let (device, former_bytes) = ("/dev/forebay/db".to_owned(), 1 << 20);
        let grown = VolumeSize { size_bytes: 2 << 20, former_bytes };
        let same = VolumeSize { size_bytes: 1 << 20, former_bytes };
        let follows = FollowedDevice { device: device.clone(), obstacle: None };
        let keeps = FollowedDevice { device, obstacle: Some("it is old: attach it again".into()) };
        let says = "volume 'db' has grown from 1MiB to 2MiB\n";
        let obstacle = "/dev/forebay/db keeps its size: it is old: attach it again\n";
        assert_eq!(size("db", &grown, None), says);
        assert_eq!(
            size("db", &grown, Some(&follows)),
            format!("{says}/dev/forebay/db has grown with it\n")
        );
        assert_eq!(size("db", &grown, Some(&keeps)), format!("{says}{obstacle}"));
        let says = "volume 'db' has 1MiB, as before\n";
        assert_eq!(size("db", &same, Some(&follows)), says);
        assert_eq!(size("db", &same, Some(&keeps)), format!("{says}{obstacle}"));
    }

    #[test]
    fn a_summary_has_what_is_not_as_configured() {
        let volume = VolumeStatus {
            size_bytes: 8 << 40,
            mode: Mode::WriteBack,
            effective_mode: Mode::WriteBack,
            ..VolumeStatus::default()
        };
        let degraded = VolumeStatus {
            effective_mode: Mode::WriteThrough,
            effective_mode_reason: Some("memory is full of dirty data".into()),
            ..volume.clone()
        };
        let frozen = VolumeStatus { frozen: true, ..volume.clone() };
        assert_eq!(summary(&frozen), "8.0 TiB, write-back, frozen");
        let mut noted = volume;
        noted.geometry.notes = vec!["stripes of two widths".into()];
        assert_eq!(summary(&noted), "8.0 TiB, write-back; stripes of two widths");
        assert_eq!(
            summary(&degraded),
            "8.0 TiB, write-back; write-through instead of write-back, memory is full of dirty data"
        );
    }
}
