//! `rescue apply` interrupted at each write in turn, and `rescue` on damaged and forged journals.

use super::apply::{ApplyOverrides, apply};
use super::source::Source;
use super::{VolumeArguments, show};
use forebay_backend::{
    AlignedBuffer, Backend, Blocking, Description, Io, IoKind, IoToken, IoWait, MemoryBackend,
};
use forebay_format::journal::{
    BATCH_BYTES_MAX, GenerationStart, Geometry, JOURNAL_BYTES_MIN, JournalId, LOG_OFFSET,
    RecordKind, Released, SUPERBLOCK_BYTES, Superblock,
};
use forebay_journal::{Log, LogAdmission, LogEntry, RecordOutcome};
use forebay_types::{ByteRange, IoError};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DISK_BYTES: u64 = 1 << 20;

/// A device that loses power. `writes_left` counts writes to several devices: all but the last
/// succeed, the last one is torn in the middle and fails, and so do all later ones.
struct PowerCut {
    below: Arc<MemoryBackend>,
    writes_left: Arc<AtomicUsize>,
}

impl Backend for PowerCut {
    fn description(&self) -> &Description {
        self.below.description()
    }

    fn submit(&self, io: Io) {
        if !io.kind.changes_data() {
            return self.below.submit(io);
        }
        let left = self.writes_left.load(Ordering::Relaxed);
        self.writes_left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left > 1 {
            return self.below.submit(io);
        }
        let Io { kind, offset, len, buffers, done } = io;
        if left == 1 && kind != IoKind::Discard {
            let device = Blocking::new(&*self.below);
            let half = len / 2 / 512 * 512;
            let mut before = AlignedBuffer::new((len - half) as usize);
            device.read(offset + half, &mut before).unwrap();
            let wait = IoWait::new(1);
            let torn = IoToken::new(wait.clone(), 0);
            self.below.submit(Io { kind, offset, len, buffers, done: torn });
            assert_eq!(wait.all(), [Ok(())]);
            device.write(offset + half, &before, true).unwrap();
        }
        done.complete(Err(IoError::Io));
    }
}

fn copy(of: &MemoryBackend) -> Arc<MemoryBackend> {
    let copy = MemoryBackend::new(of.description().size_bytes()).unwrap();
    put(&copy, 0, &content(of));
    Arc::new(copy)
}

fn content(of: &dyn Backend) -> Vec<u8> {
    let mut bytes = AlignedBuffer::new(of.description().size_bytes() as usize);
    Blocking::new(of).read(0, &mut bytes).unwrap();
    bytes.to_vec()
}

fn put(to: &dyn Backend, offset: u64, bytes: &[u8]) {
    Blocking::new(to).write(offset, &AlignedBuffer::from(bytes), true).unwrap();
}

/// A journal with records of volumes "a" and "b" in several batches, and the expected final content
/// of a's disk.
fn journal() -> (Arc<MemoryBackend>, Vec<u8>) {
    let device = Arc::new(MemoryBackend::new(JOURNAL_BYTES_MIN).unwrap());
    let geometry = Geometry::for_size(JOURNAL_BYTES_MIN).unwrap();
    let buffers = vec![vec![0; BATCH_BYTES_MAX as usize]; 3];
    let mut log: Log<Vec<u8>, ()> =
        Log::format(JournalId([8; 16]), JOURNAL_BYTES_MIN, geometry, buffers);
    let volumes = ["a", "b"].map(|name| {
        log.add_volume(name, DISK_BYTES, [1; 32].map(|_: u8| name.as_bytes()[0])).unwrap()
    });
    let write_batches = |log: &mut Log<Vec<u8>, ()>| {
        while let Some(write) = log.poll_write() {
            put(&*device, write.position, write.bytes());
            log.complete(write, Ok(()), &mut Vec::new());
        }
    };
    let mut expected = vec![0; DISK_BYTES as usize];
    for (at, sector, sectors) in
        [(1_u8, 0, 8), (2, 100, 3), (3, 2, 1), (4, 1000, 20), (5, 2047, 1), (6, 101, 1)]
    {
        for volume in volumes {
            let range = ByteRange::new(sector * 512, sectors * 512);
            assert_eq!(log.admit(volume, range.len, ()), LogAdmission::Granted);
            let bytes = vec![at; range.len as usize];
            let entry = LogEntry { kind: RecordKind::Write, volume, range };
            assert!(log.append(entry, [&bytes[..]].into_iter(), None));
            expected[range.offset as usize..range.end() as usize].copy_from_slice(&bytes);
        }
        write_batches(&mut log);
    }
    let range = ByteRange::new(1002 * 512, 4 * 512);
    let kind = RecordKind::Zero { unmap: true };
    let noted = log.record(LogEntry { kind, volume: volumes[0], range }, None);
    assert_eq!(noted, RecordOutcome::Recorded);
    expected[range.offset as usize..range.end() as usize].fill(0);
    write_batches(&mut log);
    (device, expected)
}

fn arguments(name: &str) -> VolumeArguments {
    VolumeArguments { name: name.to_owned(), number: None }
}

fn rescue(journal: Arc<dyn Backend>, disk: &dyn Backend) -> anyhow::Result<()> {
    let source = Source::walk(journal, None, None)?;
    let volume = source.find(&arguments("a"))?;
    // The journal does not know the identity of this disk.
    let overrides = ApplyOverrides { force: true, accept_loss: false, accept_older: true };
    apply(&source, volume, disk, overrides).map(drop)
}

#[test]
fn apply_interrupted_at_any_write_can_be_repeated_with_the_same_result() {
    let (journal, expected) = journal();
    let blank = MemoryBackend::new(DISK_BYTES).unwrap();
    put(&blank, 0, &vec![0xee; DISK_BYTES as usize]);
    let untouched: Vec<bool> = {
        let disk = copy(&blank);
        rescue(copy(&journal), &*disk).unwrap();
        let got = content(&*disk);
        let right = got.iter().zip(&expected).all(|(got, byte)| got == byte || *got == 0xee);
        assert!(right, "only the journal's extents are written");
        got.iter().map(|&byte| byte == 0xee).collect()
    };
    let (mut interrupted, mut released_early) = (0, 0);
    for writes in 1.. {
        let writes_left = Arc::new(AtomicUsize::new(writes));
        let (log, disk) = (copy(&journal), copy(&blank));
        let cut = |below: &Arc<MemoryBackend>| PowerCut {
            below: Arc::clone(below),
            writes_left: Arc::clone(&writes_left),
        };
        let outcome = rescue(Arc::new(cut(&log)), &cut(&disk));
        if outcome.is_ok() {
            assert_eq!(writes_left.load(Ordering::Relaxed), 1, "the first sufficient number");
            break;
        }
        interrupted += 1;
        let source = Source::walk(Arc::clone(&log) as _, None, None).unwrap();
        let volume = source.find(&arguments("a")).unwrap();
        // A torn superblock can be valid: its second half is zeroes before and after. Its release
        // mark is then correct, as it is written last.
        let is_released = volume.disk.released == Released::Applied;
        drop(source);
        if !is_released {
            rescue(Arc::clone(&log) as _, &*disk).unwrap();
        }
        released_early += usize::from(is_released);
        let got = content(&*disk);
        let is_right =
            |at: usize| if untouched[at] { got[at] == 0xee } else { got[at] == expected[at] };
        assert!((0..got.len()).all(is_right), "interrupted at write {writes}");
        let source = Source::walk(Arc::clone(&log) as _, None, None).unwrap();
        assert_eq!(source.held(source.volumes()[0].number).records, 0);
        assert_eq!(source.held(source.volumes()[1].number).records, 6, "b's records stay");
        // Applying released records writes nothing, even to a disk in use elsewhere.
        put(&*disk, 0, &[0x77; 4096]);
        rescue(Arc::clone(&log) as _, &*disk).unwrap();
        assert_eq!(content(&*disk)[..4096], [0x77; 4096]);
    }
    assert!(interrupted >= 6 && released_early <= 2, "{interrupted} {released_early}");
}

#[test]
fn a_small_disk_is_not_blamed_on_damage_to_another_volumes_data() {
    let (journal, _) = journal();
    let source = Source::walk(Arc::clone(&journal) as _, None, None).unwrap();
    let number = source.find(&arguments("b")).unwrap().number;
    let mut records = source.found().records.iter();
    let position = records.find(|found| found.record.volume == number).unwrap().position;
    let mut bytes = content(&*journal)[..1 << 20].to_vec();
    bytes[position as usize] ^= 1;
    put(&*journal, 0, &bytes);
    let small = MemoryBackend::new(DISK_BYTES / 2).unwrap();
    let error = rescue(journal, &small).unwrap_err().to_string();
    assert!(error.contains("beyond the end"), "{error}");
}

/// A disk that acknowledges writes and drops them.
struct DroppingDisk(MemoryBackend);

impl Backend for DroppingDisk {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn submit(&self, io: Io) {
        if io.kind.changes_data() { io.done.complete(Ok(())) } else { self.0.submit(io) }
    }
}

#[test]
fn apply_detects_a_disk_that_drops_writes() {
    let (journal, _) = journal();
    let disk = DroppingDisk(MemoryBackend::new(DISK_BYTES).unwrap());
    let error = rescue(Arc::clone(&journal) as _, &disk).unwrap_err().to_string();
    assert!(error.contains("does not return the data just written"), "{error}");
    let source = Source::walk(journal, None, None).unwrap();
    assert_eq!(source.held(source.volumes()[0].number).records, 7, "no records are released");
}

/// Runs list, verify and apply on a device of any content. They must not panic.
fn run_all_commands(device: &Arc<MemoryBackend>) {
    let Ok(source) = Source::walk(Arc::clone(device) as _, None, None) else { return };
    assert!(!show::to_text(&source).is_empty() && !show::render_verify(&source).is_empty());
    assert!(show::to_json(&source).is_object());
    for volume in source.volumes() {
        let disk = MemoryBackend::new(DISK_BYTES).unwrap();
        let overrides = ApplyOverrides { force: true, accept_loss: true, accept_older: true };
        let _ = apply(&source, volume, &disk, overrides);
    }
}

/// Sets one field of a superblock to any value. The caller recomputes the checksum.
fn forge(superblock: &mut Superblock, field: usize, value: u64) {
    match field {
        0 => superblock.sequence = value,
        1 => superblock.first_segment = value,
        2 => superblock.size_bytes = value,
        3 => superblock.geometry.segment_bytes = value & 0xffff_ffff,
        4 => superblock.geometry.segments = value,
        5 => superblock.next_volume = value as u16,
        6 => superblock.volumes[0].size_bytes = value,
        7 => superblock.volumes[0].number = value as u16,
        8 => superblock.starts = vec![GenerationStart { generation: value, batch: 0, segment: 0 }],
        9 => superblock.starts[0].batch = value,
        10 => superblock.starts[0].segment = value,
        _ => superblock.volumes[0].disk.samples.valid = value,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_damaged_or_forged_journal_never_panics_the_rescue(
        flips in proptest::collection::vec((0_u64..400, 0_usize..4096, any::<u8>()), 0..12),
        length in prop_oneof![
            3 => Just(JOURNAL_BYTES_MIN),
            1 => (1..JOURNAL_BYTES_MIN / 512).prop_map(|sectors| sectors * 512),
        ],
        forgeries in proptest::collection::vec((0_usize..12, any::<u64>(), 0_u32..64), 0..3),
        keeps_sum: bool,
    ) {
        let (journal, _) = journal();
        // The rest of the journal is zeroes.
        let mut bytes = content(&*journal)[..1 << 20].to_vec();
        // The superblocks and the first blocks of the log hold most of the data.
        for (block, at, value) in flips {
            let block = if block < 300 { LOG_OFFSET / 4096 + block % 24 } else { block % 32 };
            bytes[block as usize * 4096 + at] ^= value;
        }
        if keeps_sum && let Ok(mut superblock) = Superblock::decode(&bytes[..SUPERBLOCK_BYTES]) {
            for (field, value, shift) in forgeries {
                forge(&mut superblock, field, value >> shift);
            }
            bytes[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.encode_unchecked());
            bytes[SUPERBLOCK_BYTES..2 * SUPERBLOCK_BYTES].fill(0);
        }
        let device = MemoryBackend::new(length).unwrap();
        put(&device, 0, &bytes[..length.min(1 << 20) as usize]);
        run_all_commands(&Arc::new(device));
    }

    #[test]
    fn random_bytes_never_panic_the_rescue(
        seed: u64,
        sectors in 1_u64..4096,
        has_magic: bool,
    ) {
        let device = MemoryBackend::new(sectors * 512).unwrap();
        let mut state = seed | 1;
        let mut bytes: Vec<u8> = (0..sectors * 512).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        }).collect();
        if has_magic {
            bytes[..12].copy_from_slice(b"FOREBAYJ\x01\0\0\0");
        }
        put(&device, 0, &bytes);
        run_all_commands(&Arc::new(device));
    }
}
