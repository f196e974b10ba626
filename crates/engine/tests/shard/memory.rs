//! What the engine keeps for each line beside its data, as the documents say it: ARCHITECTURE
//! (Memory), SPECIFICATION (Memory) and the table of docs/manual/memory.md. With parity there is
//! a place of four bytes more for each line.

use forebay_engine::{
    Attempt, LineMeta, Outbox, Part, PartId, Shard, ShardConfig, WriteOutcome, WriteTerms,
};
use forebay_policy::Weir;
use forebay_types::{ByteRange, LINE_BYTES, Mode, VolumeId};

/// Bytes of a checksum, which the runtime keeps for each line beside what the engine does.
const CHECKSUM_BYTES: f64 = 4.0;

/// Metadata of a shard in bytes for each line that it can hold, after writes to these lines.
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
        shard.settle_steps();
    }
    let usage = shard.usage();
    usage.metadata_bytes as f64 / usage.capacity_lines as f64
}

#[test]
fn the_metadata_of_a_line_is_what_the_documents_say() {
    for slots in [1 << 12, 1 << 16, 100_000, 1 << 18] {
        let all = slots as u64 - 8;
        let clean = bytes_per_line(slots, 0..0) + CHECKSUM_BYTES;
        let dirty = bytes_per_line(slots, 0..all) + CHECKSUM_BYTES;
        let scattered = bytes_per_line(slots, (0..all).map(|at| at * 64)) + CHECKSUM_BYTES;
        println!("{slots}: {clean:.2} clean, {dirty:.2} dirty, {scattered:.2} far from each other");
        assert!((39.0..39.5).contains(&clean), "{clean}");
        assert!((39.5..40.0).contains(&dirty), "{dirty}");
        assert!((71.0..72.0).contains(&scattered), "{scattered}");
    }
}
