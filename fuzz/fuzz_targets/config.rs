//! The configuration file, and volumes on the command line.
//!
//! Properties: an error message has a remedy; an accepted volume is displayed as text that parses
//! to the same volume; and the volumes of a file have different names.

#![no_main]

use forebay_config::{ConfigError, parse_toml, parse_volume_spec};
use forebay_types::Fault;
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

/// An error has a message and a remedy, and the message does not repeat the remedy.
fn assert_says_something(error: &ConfigError) {
    let (message, remedy) = (error.to_string(), error.remedy().to_string());
    assert!(!message.is_empty() && !remedy.is_empty(), "{error:?}");
    assert!(!message.contains(&remedy), "{error:?}");
}
