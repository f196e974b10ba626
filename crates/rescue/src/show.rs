//! The output of `list` and `verify`, as text and JSON.

use super::log::{POSSIBLY_STALE, STALE_REMEDY};
use super::source::Source;
use forebay_format::journal::{LogKind, Released, VolumeEntry};
use forebay_terminal::columns::{lines, table};
use forebay_terminal::units;
use forebay_terminal::{print, print_json};
use serde_json::{Value, json};
use std::process::ExitCode;

/// `forebay rescue list`.
pub(super) fn list(source: &Source, as_json: bool) -> anyhow::Result<ExitCode> {
    match as_json {
        true => print_json(&to_json(source))?,
        false => print(&to_text(source))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `forebay rescue verify`.
pub(super) fn verify(source: &Source, as_json: bool) -> anyhow::Result<ExitCode> {
    match as_json {
        true => print_json(&to_json(source))?,
        false => print(&render_verify(source))?,
    }
    Ok(if source.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn render_verify(source: &Source) -> String {
    let state = match source.state() {
        "whole" => "whole".to_owned(),
        state => state.to_uppercase(),
    };
    let (name, count) = (source.name(), source.found().records.len());
    format!("{name} is {state}: {count} records read\n{}", notes(source))
}

fn released(volume: &VolumeEntry) -> &'static str {
    match volume.disk.released {
        Released::No => "no",
        Released::Applied => "applied",
        Released::Discarded => "discarded",
    }
}

/// The identity of the volume's disk, abbreviated.
fn disk(volume: &VolumeEntry) -> String {
    volume.identity[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn to_text(source: &Source) -> String {
    let superblock = &source.found().superblock;
    let state = match superblock.kind {
        LogKind::Journal if superblock.is_clean => "clean",
        LogKind::Journal => "not closed",
        LogKind::Vault { .. } if superblock.is_clean => "empty",
        LogKind::Vault { sealed: Some(_) } => "sealed",
        LogKind::Vault { sealed: None } => "not finished",
    };
    let mut text = format!(
        "{}: {} {}, {}, generation {}, {state}\n",
        source.name(),
        superblock.kind.as_str(),
        superblock.journal,
        units::bytes(superblock.size_bytes),
        superblock.generation(),
    );
    if source.volumes().is_empty() {
        text += "no volumes\n";
    } else {
        let headings =
            ["VOLUME", "DISK", "RELEASED", "NUMBER", "SIZE", "HELD", "ERASED", "LOST", "RECORDS"];
        let mut table = table(headings);
        for volume in source.volumes() {
            let held = source.held(volume.number);
            table.add_row([
                volume.name.clone(),
                disk(volume),
                released(volume).to_owned(),
                volume.number.to_string(),
                units::bytes(volume.size_bytes),
                units::bytes(held.write_bytes),
                units::bytes(held.erased_bytes),
                units::bytes(held.lost_bytes),
                units::count(held.records as u64),
            ]);
        }
        text += &lines(table, &[0, 1, 2]);
    }
    text + &notes(source)
}

/// One line for each fault.
fn notes(source: &Source) -> String {
    let mut text = String::new();
    for damage in &source.found().damage {
        text += &format!("damage: {damage}\n");
    }
    if source.is_unfinished() {
        text += "not finished: the dump is incomplete and lacks some of the dirty data\n";
    }
    for (device, copy, fault) in source.log.copies() {
        if let Some(fault) = fault {
            text += &format!(
                "note: copy {copy} of the superblock on {device} {fault}; the other copy is used\n"
            );
        }
    }
    if source.log.may_be_stale {
        text += &format!("note: {POSSIBLY_STALE}: {STALE_REMEDY}\n");
    } else if source.log.is_alone {
        text += "note: this is one of the two devices of a mirrored journal; the state directory \
                 records that it has all data, but the other device was not checked\n";
    }
    for VolumeEntry { name, number, .. } in source.volumes() {
        let is_unknown = source.is_relied_on(name).is_ok_and(|relies| !relies);
        if is_unknown && !source.is_given_up(name) && source.held(*number).records > 0 {
            text += &format!(
                "note: no state directory (--state) records that volume '{name}' relies on it, so \
                 its disk may have newer data\n"
            );
        }
    }
    if let Some(mark) = &source.mark {
        let volumes = match &mark.volumes {
            None => "all volumes".to_owned(),
            Some(names) => format!("volumes {}", names.join(", ")),
        };
        text +=
            &format!("given up: {}; its data of {volumes} is older than the disks\n", mark.reason);
    }
    text
}

pub(super) fn to_json(source: &Source) -> Value {
    let superblock = &source.found().superblock;
    let volumes: Vec<Value> =
        source.volumes().iter().map(|volume| volume_to_json(source, volume)).collect();
    let damage: Vec<String> = source.found().damage.iter().map(ToString::to_string).collect();
    let copies = source.log.copies().into_iter();
    let copies: Vec<String> =
        copies.map(|(_, _, fault)| fault.unwrap_or_else(|| "whole".to_owned())).collect();
    json!({
        "name": source.name(),
        "kind": superblock.kind.as_str(),
        "id": superblock.journal.to_string(),
        "state": source.state(),
        "alone": source.log.is_alone,
        "size_bytes": superblock.size_bytes,
        "generation": superblock.generation(),
        "clean": superblock.is_clean,
        "records": source.found().records.len(),
        "damage": damage,
        "superblock_copies": copies,
        "given_up": source.mark.as_ref().map(|mark| mark.reason.clone()),
        "volumes": volumes,
    })
}

fn volume_to_json(source: &Source, volume: &VolumeEntry) -> Value {
    let held = source.held(volume.number);
    json!({
        "name": volume.name,
        "number": volume.number,
        "size_bytes": volume.size_bytes,
        "disk": disk(volume),
        "samples": volume.disk.samples.valid.count_ones(),
        "released": released(volume),
        "given_up": source.is_given_up(&volume.name),
        "records": held.records,
        "held_bytes": held.write_bytes,
        "erased_bytes": held.erased_bytes,
        "lost_bytes": held.lost_bytes,
    })
}
