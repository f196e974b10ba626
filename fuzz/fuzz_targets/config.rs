//! What administrators write: the configuration file, and volumes on the command line.
//!
//! Promises: a mistake is named with what to do about it; a volume that was understood is shown as
//! a text that is understood as the same volume; and a file's volumes have different names.

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

/// A message has a mistake, a remedy, and nothing in front of them but a place.
fn assert_says_something(error: &ConfigError) {
    assert!(!error.message().is_empty() && !error.remedy().is_empty(), "{error:?}");
    assert!(error.to_string().ends_with(&format!("{}: {}", error.message(), error.remedy())));
}
