//! The JSON that commands print, with names that would control a terminal.

use crate::process::{Daemon, make_file};
use serde_json::Value;

/// A right-to-left mark, a line separator, and an override of the direction.
const NAME: &str = "a\u{200f}b\u{2028}c\u{202e}d";

/// Whether a value or a part of it is this text.
fn has(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string == text,
        Value::Array(values) => values.iter().any(|value| has(value, text)),
        Value::Object(fields) => fields.values().any(|value| has(value, text)),
        _ => false,
    }
}

#[test]
fn every_command_prints_valid_json_whatever_a_volume_is_called() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, file) = (directory.path().join("disk.img"), directory.path().join("forebay.toml"));
    make_file(&disk, 1 << 20);
    let config = format!(
        "memory = \"64MiB\"\n[[volume]]\nname = \"{NAME}\"\nbacking = \"{}\"\n\
         description = \"{NAME}\"\n",
        disk.display()
    );
    std::fs::write(&file, config).unwrap();
    let daemon = Daemon::start_configured(directory.path(), &file);
    let commands: [&[&str]; 7] = [
        &["status"],
        &["status", NAME],
        &["volume", "list"],
        &["stats"],
        &["stats", NAME],
        &["advise"],
        &["slow"],
    ];
    for arguments in commands {
        let (code, text) = daemon.run(&[arguments, &["--json"]].concat());
        assert_eq!(code, Some(0), "{text}");
        let value: Value = serde_json::from_str(&text).expect(&text);
        assert!(has(&value, NAME) || arguments == ["slow"], "{text}");
        let controls = |c: char| c.is_control() && c != '\n' || !c.is_ascii() && NAME.contains(c);
        assert!(!text.chars().any(controls), "{text:?}");
    }
    daemon.stop();
}
