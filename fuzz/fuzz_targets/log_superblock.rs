//! A damaged superblock of a journal or vault, with a valid checksum.
//!
//! The first byte chooses which, and whether the checksum is recomputed; each three bytes change
//! one byte. Properties: an accepted superblock is unchanged by encoding it again, is within its
//! limits and names each volume once; and the newer of two copies counts.

#![no_main]

use forebay_format::journal::{
    GENERATIONS_MAX, LogKind, SUPERBLOCK_BYTES, Superblock, SuperblockInvalid, VOLUMES_MAX,
};
use forebay_fuzz::log::{Device, reseal_superblock};
use forebay_journal::{RecoverError, recover, recover_vault};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static DEVICES: LazyLock<[Device; 2]> = LazyLock::new(|| [Device::journal(), Device::vault()]);

fuzz_target!(|input: &[u8]| {
    let [choice, edits @ ..] = input else { return };
    let device = &DEVICES[usize::from(choice & 1)];
    let (one, rest) = device.bytes.split_at(SUPERBLOCK_BYTES);
    let mut copy = one.to_vec();
    for edit in edits.as_chunks::<3>().0 {
        copy[usize::from(edit[0]) << 8 | usize::from(edit[1])] = edit[2];
    }
    if choice & 2 != 0 {
        reseal_superblock(&mut copy);
    }
    let other = &rest[..SUPERBLOCK_BYTES];
    let newest = Superblock::newest([&copy, other]).expect("one is whole");
    let old = Superblock::decode(other).expect("one is whole");
    match Superblock::decode(&copy) {
        Ok(superblock) => {
            assert_is_sound(&superblock);
            assert_eq!(newest, if superblock.sequence > old.sequence { superblock } else { old });
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(newest, old);
        }
    }
    // Alone on its device, it is read only as its own kind.
    let mut device = device.clone();
    device.bytes[..SUPERBLOCK_BYTES].copy_from_slice(&copy);
    device.bytes[SUPERBLOCK_BYTES..2 * SUPERBLOCK_BYTES].fill(0);
    let size_bytes = device.bytes.len() as u64;
    let results = [recover(&mut device, size_bytes), recover_vault(&mut device, size_bytes)];
    assert!(results.iter().filter(|result| result.is_ok()).count() <= 1);
    for error in results.into_iter().filter_map(Result::err) {
        let is_foreign = RecoverError::Superblock(SuperblockInvalid::Foreign);
        assert!(error == is_foreign || !error.to_string().is_empty());
    }
});

fn assert_is_sound(superblock: &Superblock) {
    let again = Superblock::decode(&superblock.encode());
    assert_eq!(again.as_ref(), Ok(superblock));
    assert!(superblock.geometry.is_valid(superblock.size_bytes));
    assert!(superblock.volumes.len() <= VOLUMES_MAX && superblock.starts.len() <= GENERATIONS_MAX);
    assert!(superblock.starts.is_sorted_by(|a, b| a.generation < b.generation));
    for (at, volume) in superblock.volumes.iter().enumerate() {
        assert!(volume.name.len() <= 256);
        assert!(superblock.volumes[..at].iter().all(|other| other.number != volume.number));
    }
    assert!(matches!(superblock.kind, LogKind::Journal | LogKind::Vault { .. }));
}
