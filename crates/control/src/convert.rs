//! Between what goes over the socket and what has been checked.
//!
//! The words of a request are read by the parser of the command line, so both accept the same and
//! answer with the same sentences.

use forebay_api::{AddVolume, ErrorKind, Problem, VolumeSettings};
use forebay_config::{ConfigError, VolumeChange, VolumeSpec};

/// The volume that a request asks for.
///
/// # Errors
/// It can't be: the sentence of [`ConfigError`], of kind [`ErrorKind::Invalid`].
pub fn volume_spec(request: &AddVolume) -> Result<VolumeSpec, Problem> {
    let change = volume_change(&request.settings)?;
    VolumeSpec::new(&request.name, &request.backing)
        .and_then(|spec| spec.configured(&change))
        .map_err(invalid)
}

/// The change that a request asks for.
///
/// # Errors
/// A word is unknown: the sentence of [`ConfigError`], of kind [`ErrorKind::Invalid`].
pub fn volume_change(settings: &VolumeSettings) -> Result<VolumeChange, Problem> {
    let mut change = VolumeChange {
        ordered: settings.ordered,
        accept_loss: settings.accept_loss,
        read_only: settings.read_only,
        prefetch: settings.prefetch,
        ..VolumeChange::default()
    };
    for (key, value) in [
        ("mode", &settings.mode),
        ("protection", &settings.protection),
        ("journal", &settings.journal),
        ("journal-mirror", &settings.journal_mirror),
        ("durability", &settings.durability),
        ("tls", &settings.tls),
        ("description", &settings.description),
    ] {
        if let Some(value) = value {
            change.set(key, value).map_err(invalid)?;
        }
    }
    Ok(change)
}

/// The request that asks for a volume.
pub fn add_request(spec: &VolumeSpec) -> AddVolume {
    AddVolume {
        name: spec.name.clone(),
        backing: spec.backing.clone(),
        settings: settings_request(&spec.settings()),
    }
}

/// The request that asks for a change.
pub fn settings_request(change: &VolumeChange) -> VolumeSettings {
    VolumeSettings {
        mode: change.mode.map(|mode| mode.to_string()),
        protection: change.protection.map(|protection| protection.to_string()),
        journal: change.journal.clone(),
        journal_mirror: change.journal_mirror.clone(),
        durability: change.durability.map(|durability| durability.to_string()),
        ordered: change.ordered,
        accept_loss: change.accept_loss,
        read_only: change.read_only,
        prefetch: change.prefetch,
        tls: change.tls.map(|tls| tls.to_string()),
        description: change.description.clone(),
    }
}

/// The problem for settings that can't be, message and remedy kept apart.
pub fn invalid(error: ConfigError) -> Problem {
    Problem::new(ErrorKind::Invalid, error.message(), error.remedy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_survives_the_way_over_the_socket() {
        for text in [
            "disk=/dev/sdb",
            "db=delay(read=1ms):/x,mode=write-back,protection=none,accept-loss=yes,\
             read-only=yes,prefetch=no,tls=required,description=the books",
            "vm=/x,mode=write-back,protection=ups",
            "vm=/x,mode=write-back,protection=journal,journal=delay(read=1ms,write=1ms):/j,k,\
             journal-mirror=/k,durability=flush,ordered=yes,accept-loss=yes",
        ] {
            let spec: VolumeSpec = text.parse().unwrap();
            assert_eq!(volume_spec(&add_request(&spec)), Ok(spec));
        }
    }

    #[test]
    fn words_are_refused_with_the_sentence_of_the_command_line() {
        let settings = VolumeSettings { mode: Some("fast".into()), ..VolumeSettings::default() };
        let problem = volume_change(&settings).unwrap_err();
        assert_eq!(problem.kind, ErrorKind::Invalid);
        assert_eq!(problem.to_string(), "no mode 'fast': use write-back, write-through or bypass");
        let text = |text: &str| Some(text.to_owned());
        for (protection, journal, durability, sentence) in [
            (text("vault"), None, None, "no protection 'vault': write protection=journal with "),
            (text("journal"), None, None, "volume 'd': protection=journal, but no journal is "),
            (text("journal"), text(""), None, "journal= names nothing: name a file or device"),
            (text("journal"), text("/x"), None, "volume 'd': its journal /x is its own backing"),
            (None, text("/j"), None, "volume 'd': a journal is named, but nothing is protected"),
            (None, None, text("ack"), "volume 'd': durability=ack needs a journal, and none is"),
            (None, None, text("x"), "no durability 'x': use ack or flush"),
        ] {
            let settings = VolumeSettings { protection, journal, durability, ..Default::default() };
            let request = AddVolume { name: "d".into(), backing: "/x".into(), settings };
            let problem = volume_spec(&request).unwrap_err();
            assert_eq!(problem.kind, ErrorKind::Invalid);
            assert!(problem.to_string().starts_with(sentence), "{problem}");
        }
    }
}
