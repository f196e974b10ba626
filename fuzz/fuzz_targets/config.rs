//! The configuration file, and volumes on the command line.
//!
//! Properties: an error message has a remedy; an accepted volume is displayed as text that parses
//! to the same volume; and the volumes of a file have different names.

#![no_main]

use forebay_config::{ConfigError, parse_toml, parse_volume_spec};
use libfuzzer_sys::fuzz_target;
use std::collections::HashSet;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match parse_volume_spec(text) {
        Ok(volume) => {
            let shown = volume.to_string();
            match parse_volume_spec(&shown) {
                Ok(again) => assert_eq!(again, volume, "shown as {shown:?}"),
                Err(error) => panic!("{shown:?} is not understood again: {error}"),
            }
        }
        Err(error) => assert_says_something(&error),
    }
    match parse_toml(text, "forebay.toml") {
        Ok(settings) => {
            let mut names = HashSet::new();
            assert!(settings.volumes.iter().all(|volume| names.insert(&volume.name)));
        }
        Err(error) => assert_says_something(&error),
    }
});

/// A message has a fault and a remedy, preceded only by a position.
fn assert_says_something(error: &ConfigError) {
    assert!(!error.message().is_empty() && !error.remedy().is_empty(), "{error:?}");
    assert!(error.to_string().ends_with(&format!("{}: {}", error.message(), error.remedy())));
}
