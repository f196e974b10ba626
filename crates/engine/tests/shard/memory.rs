//! The metadata per line, as documented in the README of crate runtime (Memory), SPECIFICATION
//! (Memory) and the table of docs/manual/memory.md. With parity, each line takes four more bytes.

use forebay_engine::{
    Attempt, LineMeta, Outbox, Part, PartId, Shard, ShardConfig, WriteOutcome, WriteTerms,
};
use forebay_policy::{Miniatures, Weir};
use forebay_types::{ByteRange, LINE_BYTES, Mode, VolumeId};

/// The size of a checksum, which the runtime keeps for each line.
const CHECKSUM_BYTES: f64 = 4.0;

/// The metadata of a shard in bytes per line of capacity, after writes to `lines`.
fn bytes_per_line(slots: usize, lines: impl Iterator<Item = u64>) -> f64 {
    let volume = VolumeId(0);
    let config = ShardConfig { dirty_lines_max: slots, ..ShardConfig::for_slots(slots) };
    let policy = Box::new(Weir::new(slots));
    let mut shard = Shard::new(vec![LineMeta::FREE; slots], policy, config);
    shard.add_volume(volume, 1 << 40, Mode::WriteBack);
    let mut out = Outbox::default();
    for line in lines {
        let range = ByteRange::new(line * LINE_BYTES, LINE_BYTES);
        let part = Part { id: PartId(line), volume, range, restores: false };
        let terms = WriteTerms::default();
        let outcome = shard.write(&part, terms, Attempt::default(), &mut out);
        assert_eq!(outcome, WriteOutcome::Done);
        out.memory.clear();
        shard.finish_call();
    }
    let usage = shard.usage();
    usage.metadata_bytes as f64 / usage.capacity_lines as f64
}

#[test]
fn the_metadata_of_a_line_is_what_the_documents_say() {
    for slots in [1 << 16, 100_000, 1 << 18] {
        let all = slots as u64 - 8;
        let clean = bytes_per_line(slots, 0..0) + CHECKSUM_BYTES;
        let dirty = bytes_per_line(slots, 0..all) + CHECKSUM_BYTES;
        let scattered = bytes_per_line(slots, (0..all).map(|at| at * 64)) + CHECKSUM_BYTES;
        println!("{slots}: {clean:.2} clean, {dirty:.2} dirty, {scattered:.2} far from each other");
        assert!((39.0..39.5).contains(&clean), "{clean}");
        // Half a byte at most of these is for the miss-ratio curve, and up to 3.5 in a shard of
        // this size for the miniatures of the policy.
        let miniatures = Miniatures::bytes_max(slots) as f64 / slots as f64;
        assert!(miniatures < 3.5, "{miniatures}");
        assert!((41.0..42.0).contains(&(dirty - miniatures)), "{dirty}");
        assert!((71.0..72.0).contains(&(scattered - miniatures)), "{scattered}");
    }
}

/// The metadata that `volumes` write-back volumes without dirty lines add to a shard, in bytes.
/// Half of the volumes are ordered.
fn bytes_of_clean_volumes(slots: usize, volumes: u16) -> u64 {
    let policy = Box::new(Weir::new(slots));
    let mut shard = Shard::new(vec![LineMeta::FREE; slots], policy, ShardConfig::for_slots(slots));
    let before = shard.usage().metadata_bytes;
    for volume in (0..volumes).map(VolumeId) {
        shard.add_volume(volume, 1 << 40, Mode::WriteThrough);
        shard.volume_mut(volume).set_mode(Mode::WriteBack);
        if volume.0 % 2 == 0 {
            shard.volume_mut(volume).set_ordered();
        }
        assert_eq!(shard.flush(volume, PartId(0), 0, &mut Outbox::default()), Some(Ok(())));
    }
    shard.usage().metadata_bytes - before
}

#[test]
fn a_volume_without_dirty_lines_takes_no_memory_per_line() {
    let small = bytes_of_clean_volumes(1 << 10, 256);
    let large = bytes_of_clean_volumes(1 << 20, 256);
    assert_eq!(small, large, "bytes of 256 volumes in pools of 4 MiB and of 4 GiB");
    assert!(large < 256 * 1390, "{large}");
}
