//! A journal or vault with arbitrary damage, read like a rescue and continued like a start.
//!
//! The first byte chooses which, and which checksums are recomputed after the damage; each four
//! bytes change one byte. Properties: found data is on the device and belongs to a valid volume;
//! the ranges that a disk lacks are disjoint and in order; and a continued log has the same content
//! afterwards.

#![no_main]

use forebay_format::journal::{LogKind, RecordKind, VolumeEntry};
use forebay_fuzz::log::{BUFFER_BYTES, DEVICE_BYTES, Device};
use forebay_journal::{Extent, Found, Image, Log, Source, recover_any};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static DEVICES: LazyLock<[Device; 2]> = LazyLock::new(|| [Device::journal(), Device::vault()]);

fuzz_target!(|input: &[u8]| {
    let [choice, edits @ ..] = input else { return };
    let mut device = DEVICES[usize::from(choice & 1)].clone();
    device.damage(edits);
    if choice & 2 != 0 {
        device.reseal_superblocks();
    }
    if choice & 4 != 0 {
        device.reseal_batches();
    }
    let Ok(found) = recover_any(&mut device, DEVICE_BYTES) else { return };
    assert_is_sound(&found);
    let segment_bytes = found.superblock.geometry.segment_bytes;
    // A damaged log is not continued without an override. Damage with valid checksums may hide in
    // one that seems undamaged, and look like its batches when it continues there.
    let is_whole = found.damage.is_empty() && found.superblock.kind == LogKind::Journal;
    let is_ambiguous = choice & 4 != 0 || found.superblock.is_clean && choice & 2 != 0;
    if is_whole && !is_ambiguous && segment_bytes >= BUFFER_BYTES as u64 {
        go_on(device, &found);
    }
});

fn assert_is_sound(found: &Found) {
    let size_bytes = found.superblock.size_bytes;
    for record in &found.records {
        let number = record.record.volume;
        assert!(found.superblock.volume(number).is_some_and(VolumeEntry::has_valid_records));
        if record.record.kind == RecordKind::Write {
            assert!(record.position + record.record.range.len <= size_bytes);
        }
    }
    assert!(found.damage.iter().all(|damage| !damage.to_string().is_empty()));
    for volume in &found.superblock.volumes {
        let extents = extents(found, volume);
        assert!(extents.is_sorted_by(|a, b| a.range.end() <= b.range.offset));
        for extent in extents {
            let Source::Write { record, offset } = extent.source else { continue };
            assert!(offset + extent.range.len <= found.records[record].record.range.len);
        }
    }
}

fn extents(found: &Found, volume: &VolumeEntry) -> Vec<Extent> {
    Image::of_volume(&found.records, volume.number).extents().collect()
}

/// Starts a new generation, and recovers it as the next one would.
fn go_on(mut device: Device, found: &Found) {
    let buffers = vec![vec![0; BUFFER_BYTES]; 3];
    let Ok(mut log) = Log::<Vec<u8>, ()>::resume(found, buffers) else { return };
    log.self_check();
    while let Some(write) = log.poll_write() {
        let at = write.position as usize;
        device.bytes[at..at + write.len].copy_from_slice(write.bytes());
        log.complete(write, Ok(()), &mut Vec::new());
        log.self_check();
    }
    let again = recover_any(&mut device, DEVICE_BYTES).expect("it has a new superblock");
    assert_eq!(again.damage, []);
    assert_eq!(again.records.len(), found.records.len());
    for volume in &found.superblock.volumes {
        assert_eq!(extents(&again, volume), extents(found, volume));
    }
}
