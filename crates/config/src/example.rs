//! The example of a configuration file: every setting with its meaning, values and default, as a
//! comment. It is made of the tables of the settings, so it has what the program has.

use forebay_types::{PROGRAM_SETTINGS, Setting, VOLUME_SETTINGS};
use std::fmt::Write;

/// Columns of a line of the file.
const WIDTH: usize = 88;

const HEAD: &str = "\
# Configuration of Forebay, the block cache. `man 5 forebay.toml` has the same as a page.
#
# Lines that begin with \"# \" explain, lines that begin with \"#\" alone are settings with their
# defaults, or with a placeholder if they have none. To change one, remove its # and write
# the value. `forebay serve --check --config FILE` checks the file, and `forebay reload` or
# `systemctl reload forebay` applies its changes. Settings that need a restart say so.

";

const VOLUMES: &str = "
# Volumes: a section for each, below all settings above. Only name and backing are needed.
# A backing is the path of a disk or an image file, or one of memory:SIZE,
# nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE and
# s3://BUCKET/PREFIX. Name a disk by a path that stays, such as one in /dev/disk/by-id.
#
#[[volume]]
#name = \"data\"
#backing = \"/dev/disk/by-id/DISK\"

# Settings of a volume. Those that need the volume to be removed and added again say so.

";

/// A configuration file with every setting as a comment. Parsed, it equals an empty file.
pub fn example() -> String {
    let mut text = HEAD.to_owned();
    for setting in PROGRAM_SETTINGS {
        describe(&mut text, &setting, "Needs a restart.");
    }
    text += VOLUMES;
    for setting in VOLUME_SETTINGS {
        describe(&mut text, &setting, "Needs a new volume.");
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// Appends a setting with its meaning. `fixed` says what a change takes.
fn describe(text: &mut String, setting: &Setting, fixed: &str) {
    let Setting { key, values, help, is_live, .. } = setting;
    let (end, fixed) = if *is_live { ("", "") } else { (" ", fixed) };
    let several = if setting.is_list() { ", several as [\"A\", \"B\"]" } else { "" };
    let values = values.trim_end_matches("...");
    comment(text, &format!("{}. Values: {values}{several}.{end}{fixed}", sentence(help)));
    let value = toml::Value::String(shown_value(setting));
    let value = if setting.is_list() { format!("[{value}]") } else { value.to_string() };
    writeln!(text, "#{key} = {value}\n").expect("a string takes any text");
}

/// The default of a setting, or a placeholder.
fn shown_value(setting: &Setting) -> String {
    match setting.default {
        "" => setting.values.trim_end_matches("...").to_owned(),
        default => default.to_owned(),
    }
}

/// A text with a capital at the beginning, unless that is a word of the configuration.
fn sentence(help: &str) -> String {
    let mut letters = help.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Appends a text as lines of comment.
fn comment(text: &mut String, words: &str) {
    let mut line = "#".to_owned();
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            *text += &line;
            *text += "\n";
            line = "#".to_owned();
        }
        line += " ";
        line += word;
    }
    *text += &line;
    *text += "\n";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, VolumeSpec, parse_toml};

    /// The lines that are settings, without their #.
    fn settings() -> Vec<String> {
        let example = example();
        let settings = example.lines().filter_map(|line| line.strip_prefix('#'));
        settings.filter(|line| line.starts_with(|c: char| c != ' ')).map(str::to_owned).collect()
    }

    /// Whether a line is a setting with a default, and has an effect without others.
    fn has_default(line: &str, table: &'static [Setting]) -> bool {
        let key = line.split(' ').next().unwrap_or_default();
        let needs_others = ["durability", "unsafe-supply"].contains(&key);
        !needs_others && Setting::find(key, table).is_some_and(|it| !it.default.is_empty())
    }

    #[test]
    fn the_example_changes_nothing() {
        let example = example();
        assert!(example.lines().all(|line| line.is_empty() || line.starts_with('#')));
        assert!(example.lines().all(|line| line.len() <= 100), "{example}");
        assert_eq!(parse_toml(&example, "example").unwrap(), Settings::default());
    }

    #[test]
    fn the_settings_of_the_example_are_the_defaults() {
        let lines = settings();
        let at = lines.iter().position(|line| line == "[[volume]]").unwrap();
        let (program, volume) = lines.split_at(at);
        assert_eq!(program.len(), PROGRAM_SETTINGS.len());
        let program: Vec<_> =
            program.iter().filter(|line| has_default(line, &PROGRAM_SETTINGS)).cloned().collect();
        assert!(program.len() > 10);
        let parsed = parse_toml(&program.join("\n"), "example").unwrap();
        assert_eq!(parsed, Settings::defaults());

        assert_eq!(volume.len(), 3 + VOLUME_SETTINGS.len());
        let mut kept = volume[..3].to_vec();
        kept.extend(volume.iter().filter(|line| has_default(line, &VOLUME_SETTINGS)).cloned());
        assert!(kept.len() > 20);
        let parsed = parse_toml(&kept.join("\n"), "example").unwrap();
        let plain = VolumeSpec::new("data", "/dev/disk/by-id/DISK").unwrap();
        assert_eq!(parsed.volumes, [plain]);
    }
}
