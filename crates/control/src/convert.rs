//! Conversions between the types of the API and of the configuration.
//!
//! The parser of the command line parses the settings of a request, so both accept the same values
//! and report the same errors.

use forebay_api::{
    AddVolume, ErrorKind, GeometrySource, GeometryStatus, PinRequest, Problem, ServerSettings,
    VolumeSettings, VolumeStatus,
};
use forebay_config::{
    ConfigError, GeometrySource as Source, ResolvedGeometry, ServerChange, VolumeChange,
    VolumeSpec, parse_pinned_ranges, pinned_ranges_shown,
};
use forebay_types::{Action, PinnedRanges, Protection};

/// Converts a request to a checked volume.
///
/// # Errors
/// [`ErrorKind::Invalid`] with the message of the [`ConfigError`] if the volume is invalid.
pub fn volume_spec(request: &AddVolume) -> Result<VolumeSpec, Problem> {
    let change = volume_change(&request.settings)?;
    VolumeSpec::new(&request.name, &request.backing)
        .and_then(|spec| spec.configured(&change))
        .map_err(invalid)
}

/// Converts a request to a change of settings.
///
/// # Errors
/// [`ErrorKind::Invalid`] with the message of the [`ConfigError`] if a value is invalid.
pub fn volume_change(settings: &VolumeSettings) -> Result<VolumeChange, Problem> {
    let mut change = VolumeChange::default();
    for (setting, value) in settings.pairs() {
        change.set(setting.key, value).map_err(invalid)?;
    }
    Ok(change)
}

/// Converts a request to a change of the server's settings.
///
/// # Errors
/// As [`volume_change`].
pub fn server_change(settings: &ServerSettings) -> Result<ServerChange, Problem> {
    let mut change = ServerChange::default();
    let ServerSettings { memory, memory_min, memory_max, memory_reserve, cache_ratio, background } =
        settings;
    let values = [memory, memory_min, memory_max, memory_reserve, cache_ratio, background];
    for (key, value) in ServerChange::KEYS.into_iter().zip(values) {
        if let Some(value) = value {
            change.set(key, value).map_err(invalid)?;
        }
    }
    Ok(change)
}

/// Converts a change of the server's settings to its request.
pub fn server_request(change: &ServerChange) -> ServerSettings {
    ServerSettings {
        memory: change.memory.map(|it| it.to_string()),
        memory_min: change.memory_min.map(|it| it.to_string()),
        memory_max: change.memory_max.map(|it| it.to_string()),
        memory_reserve: change.memory_reserve.map(|it| it.to_string()),
        cache_ratio: change.cache_ratio.map(|it| it.to_string()),
        background: change.background.map(|it| it.to_string()),
    }
}

/// Converts a request to ranges to pin or to unpin.
///
/// # Errors
/// [`ErrorKind::BadRequest`] if there is no range, and [`ErrorKind::Invalid`] with the message of
/// the [`ConfigError`] if a range is invalid.
pub fn pinned_ranges(request: &PinRequest) -> Result<PinnedRanges, Problem> {
    if request.ranges.is_empty() {
        let message = "the request names no range";
        return Err(Problem::new(ErrorKind::BadRequest, message, "name one, such as 1GiB+256MiB"));
    }
    parse_pinned_ranges(request.ranges.iter().map(String::as_str)).map_err(invalid)
}

/// Converts ranges to the request that pins or unpins them.
pub fn pin_request(ranges: &PinnedRanges) -> PinRequest {
    PinRequest { ranges: pinned_ranges_shown(ranges).split(',').map(str::to_owned).collect() }
}

/// Converts a volume to the request that adds it.
pub fn add_request(spec: &VolumeSpec) -> AddVolume {
    AddVolume {
        name: spec.name.clone(),
        backing: spec.backing.clone(),
        settings: settings_request(&spec.settings()),
    }
}

/// Converts a change of settings to its request.
pub fn settings_request(change: &VolumeChange) -> VolumeSettings {
    change.pairs().into_iter().collect()
}

/// A volume's status, with all its settings as text.
pub fn with_settings(status: VolumeStatus, spec: &VolumeSpec) -> VolumeStatus {
    let settings = spec.all_settings().into_iter().filter(|(_, value)| !value.is_empty());
    VolumeStatus { settings: settings.collect(), ..status }
}

/// The part of a volume's status that its specification determines, but for `settings`. The rest
/// has its defaults.
pub fn configured_status(spec: &VolumeSpec) -> VolumeStatus {
    VolumeStatus {
        name: spec.name.clone(),
        backing: spec.backing.clone(),
        mode: spec.config.mode.into(),
        effective_mode: spec.config.mode.into(),
        protection: spec.config.protection.to_string(),
        journal: spec.config.journal.clone(),
        journal_mirror: spec.config.journal_mirror.clone(),
        durability: spec.config.journal.as_ref().map(|_| spec.config.durability.to_string()),
        unsafe_supply: (spec.config.protection == Protection::Ups)
            .then(|| spec.config.unsafe_supply.to_string()),
        ordered: spec.config.ordered,
        accept_loss: spec.config.accept_loss,
        read_only: spec.config.read_only,
        frozen: spec.config.frozen,
        prefetch: spec.config.prefetch,
        tls: spec.config.tls.to_string(),
        description: spec.config.description.clone(),
        ..VolumeStatus::default()
    }
}

/// Converts a geometry to its status.
pub fn geometry_status(found: &ResolvedGeometry) -> GeometryStatus {
    let source = |source| match source {
        Source::Device => GeometrySource::Device,
        Source::Hand => GeometrySource::SetByHand,
        Source::Unknown => GeometrySource::Unknown,
    };
    let geometry = &found.geometry;
    GeometryStatus {
        stripe_bytes: geometry.stripe_bytes,
        stripe_source: source(found.stripe_source),
        chunk_bytes: geometry.chunk_bytes,
        chunk_source: source(found.chunk_source),
        stripe_offset_bytes: geometry.offset_bytes,
        stripe_offset_source: source(found.offset_source),
        optimal_bytes: geometry.optimal_bytes,
        rotational: geometry.rotational,
        rotational_source: source(found.rotational_source),
        notes: found.notes.clone(),
    }
}

pub(crate) fn invalid(error: ConfigError) -> Problem {
    Problem::of(ErrorKind::Invalid, &error, &Action::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn a_volume_survives_the_conversion_to_a_request_and_back() {
        for text in [
            "disk=/dev/sdb",
            "db=delay(read=1ms):/x,mode=write-back,protection=none,accept-loss=yes,\
             read-only=yes,prefetch=no,warm=no,tls=required,description=the books",
            "vm=/x,mode=write-back,protection=ups",
            "vm=/x,mode=write-back,protection=ups,unsafe-supply=disk-cache",
            "vm=/x,mode=write-back,protection=journal,journal=delay(read=1ms,write=1ms):/j,k,\
             journal-mirror=/k,durability=flush,ordered=yes,accept-loss=yes",
            "vm=/x,stripe=112KiB,chunk=16KiB,stripe-offset=96KiB,rotational=no",
            "vm=/x,stripe=none,gather-below=64KiB",
            "vm=/x,gather-below=off",
            "vm=/x,pin=0+1MiB,4MiB+512KiB,warm=no",
            "vm=/x,pin=all",
            "vm=/x,read-latency=20ms,write-back-rate=50MiB,write-back-iops=9,write-back-age=off",
        ] {
            let spec: VolumeSpec = text.parse().unwrap();
            assert_eq!(volume_spec(&add_request(&spec)), Ok(spec));
        }
    }

    #[test]
    fn invalid_settings_are_refused_with_the_error_of_the_command_line() {
        let settings = VolumeSettings::from([("mode", "fast")]);
        let problem = volume_change(&settings).unwrap_err();
        assert_eq!(problem.kind, ErrorKind::Invalid);
        let sentence = "unknown mode 'fast': use write-back, write-through or bypass";
        assert_eq!(problem.explained(), sentence);
        let refused = |settings: &[(&'static str, &str)], sentence| {
            let settings = settings.iter().map(|&(key, value)| (key, value.to_owned()));
            assert_refused(settings.collect(), sentence);
        };
        let journal = ("protection", "journal");
        refused(
            &[("protection", "vault")],
            "unknown protection 'vault': write protection=journal with ",
        );
        refused(&[journal], "volume 'd': protection=journal, but no journal is ");
        refused(&[journal, ("journal", "")], "journal= is empty: name a file or device");
        refused(&[journal, ("journal", "/x")], "volume 'd': journal /x is also its backing");
        refused(&[("journal", "/j")], "volume 'd': journal is set, but the protection does not");
        refused(
            &[("durability", "ack")],
            "volume 'd': durability=ack needs a journal, and none is",
        );
        refused(&[("durability", "x")], "unknown durability 'x': use ack or flush");
        refused(
            &[("unsafe-supply", "none")],
            "unknown unsafe-supply 'none': use stable or disk-cache",
        );
        refused(
            &[("unsafe-supply", "stable")],
            "volume 'd': unsafe-supply=stable needs protection=ups, and the protection",
        );
    }

    #[test]
    fn a_change_of_the_server_survives_the_conversion_to_a_request_and_back() {
        for words in [&[][..], &["memory=67108865"], &["memory=auto", "memory-min=1.5GiB"]] {
            let change = ServerChange::parse(words.iter().copied()).unwrap();
            assert_eq!(server_change(&server_request(&change)), Ok(change));
        }
        for key in ServerChange::KEYS {
            let value = match key {
                "cache-ratio" => "40:60",
                "background" => "full",
                _ => "1GiB",
            };
            let change = ServerChange::parse([&*format!("{key}={value}")]).unwrap();
            let request = serde_json::to_value(server_request(&change)).unwrap();
            let only = serde_json::json!({ key.replace('-', "_"): value });
            assert_eq!((server_change(&server_request(&change)), request), (Ok(change), only));
        }
        let settings = ServerSettings { memory: Some("much".into()), ..ServerSettings::default() };
        let sentence = "invalid memory size 'much': write auto, or a size like 512MiB or 1.5GiB";
        assert_eq!(server_change(&settings).unwrap_err().explained(), sentence);
    }

    #[test]
    fn ranges_survive_the_conversion_to_a_request_and_back() {
        let parsed = |texts: &[&str]| {
            let ranges = texts.iter().map(|text| (*text).to_owned()).collect();
            pinned_ranges(&PinRequest { ranges })
        };
        for texts in [&["all"][..], &["0+4096", "1GiB+256MiB"], &["8192+1", "0+1MiB"]] {
            let ranges = parsed(texts).unwrap();
            assert_eq!(pinned_ranges(&pin_request(&ranges)), Ok(ranges));
        }
        assert_eq!(parsed(&[]).unwrap_err().kind, ErrorKind::BadRequest);
        assert_eq!(parsed(&["0+0"]).unwrap_err().kind, ErrorKind::Invalid);
    }

    fn assert_refused(settings: VolumeSettings, sentence: &str) {
        let request = AddVolume { name: "d".into(), backing: "/x".into(), settings };
        let problem = volume_spec(&request).unwrap_err();
        assert_eq!(problem.kind, ErrorKind::Invalid);
        assert!(problem.explained().starts_with(sentence), "{problem}");
    }
}
