//! A rescue that is cut off at each write in turn, and one of a journal that says anything at all.

use super::apply::{Words, apply};
use super::source::Source;
use super::{VolumeArguments, show};
use forebay_backend::{
    AlignedBuffer, Backend, Blocking, Completion, Description, Io, IoKind, MemoryBackend, Wait,
};
use forebay_format::journal::{
    BATCH_BYTES_MAX, GenerationStart, Geometry, JOURNAL_BYTES_MIN, JournalId, LOG_OFFSET,
    RecordKind, Released, SUPERBLOCK_BYTES, Superblock,
};
use forebay_journal::{Admission, Entry, Log, RecordOutcome};
use forebay_types::{ByteRange, IoError};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DISK_BYTES: u64 = 1 << 20;

/// A device that takes a number of writes, together with others, tears the next one in the middle,
/// and takes no more.
struct Cut {
    below: Arc<MemoryBackend>,
    left: Arc<AtomicUsize>,
}

impl Backend for Cut {
    fn description(&self) -> &Description {
        self.below.description()
    }

    fn submit(&self, io: Io) {
        if !io.kind.changes_data() {
            return self.below.submit(io);
        }
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left > 1 {
            return self.below.submit(io);
        }
        let Io { kind, offset, len, buffers, done } = io;
        if left == 1 && kind != IoKind::Discard {
            let device = Blocking::new(&*self.below);
            let half = len / 2 / 512 * 512;
            let mut before = AlignedBuffer::new((len - half) as usize);
            device.read(offset + half, &mut before).unwrap();
            let wait = Wait::new(1);
            let torn = Completion::new(wait.clone(), 0);
            self.below.submit(Io { kind, offset, len, buffers, done: torn });
            assert_eq!(wait.all(), [Ok(())]);
            device.write(offset + half, &before, true).unwrap();
        }
        done.complete(Err(IoError::Io));
    }
}

fn copy(of: &MemoryBackend) -> Arc<MemoryBackend> {
    let size = of.description().size_bytes;
    let twin = MemoryBackend::new(size).unwrap();
    put(&twin, 0, &content(of));
    Arc::new(twin)
}

fn content(of: &dyn Backend) -> Vec<u8> {
    let mut bytes = AlignedBuffer::new(of.description().size_bytes as usize);
    Blocking::new(of).read(0, &mut bytes).unwrap();
    bytes.to_vec()
}

fn put(to: &dyn Backend, offset: u64, bytes: &[u8]) {
    Blocking::new(to).write(offset, &AlignedBuffer::from(bytes), true).unwrap();
}

/// A journal with records of two volumes, and what the first one's disk must hold in the end.
fn journal() -> (Arc<MemoryBackend>, Vec<u8>) {
    let device = Arc::new(MemoryBackend::new(JOURNAL_BYTES_MIN).unwrap());
    let geometry = Geometry::for_size(JOURNAL_BYTES_MIN).unwrap();
    let buffers = vec![vec![0; BATCH_BYTES_MAX as usize]; 3];
    let mut log: Log<Vec<u8>, ()> =
        Log::format(JournalId([8; 16]), JOURNAL_BYTES_MIN, geometry, buffers);
    let volumes = ["a", "b"].map(|name| {
        log.add_volume(name, DISK_BYTES, [1; 32].map(|_: u8| name.as_bytes()[0])).unwrap()
    });
    let mut expected = vec![0; DISK_BYTES as usize];
    for (at, sector, sectors) in
        [(1_u8, 0, 8), (2, 100, 3), (3, 2, 1), (4, 1000, 20), (5, 2047, 1), (6, 101, 1)]
    {
        for volume in volumes {
            let range = ByteRange::new(sector * 512, sectors * 512);
            assert_eq!(log.admit(volume, range.len, ()), Admission::Granted);
            let bytes = vec![at; range.len as usize];
            let entry = Entry { kind: RecordKind::Write, volume, range };
            assert!(log.append(entry, [&bytes[..]].into_iter(), None));
            expected[range.offset as usize..range.end() as usize].copy_from_slice(&bytes);
        }
    }
    let range = ByteRange::new(1002 * 512, 4 * 512);
    let kind = RecordKind::Zero { unmap: true };
    let noted = log.record(Entry { kind, volume: volumes[0], range }, None);
    assert_eq!(noted, RecordOutcome::Recorded);
    expected[range.offset as usize..range.end() as usize].fill(0);
    while let Some(write) = log.poll_write() {
        put(&*device, write.position, write.bytes());
        log.complete(write, Ok(()), &mut Vec::new());
    }
    (device, expected)
}

fn arguments(name: &str) -> VolumeArguments {
    VolumeArguments { name: name.to_owned(), number: None }
}

fn rescue(journal: Arc<dyn Backend>, disk: &dyn Backend) -> anyhow::Result<()> {
    let source = Source::of(journal, None, None)?;
    let volume = source.find(&arguments("a"))?;
    // The words of this disk are not those of the journal.
    apply(&source, volume, disk, Words { force: true, accept_loss: false }).map(drop)
}

#[test]
fn a_rescue_that_is_cut_off_anywhere_is_repeated_with_the_same_result() {
    let (journal, expected) = journal();
    let blank = MemoryBackend::new(DISK_BYTES).unwrap();
    put(&blank, 0, &vec![0xee; DISK_BYTES as usize]);
    let untouched: Vec<bool> = {
        let disk = copy(&blank);
        rescue(copy(&journal), &*disk).unwrap();
        let got = content(&*disk);
        let right = got.iter().zip(&expected).all(|(got, byte)| got == byte || *got == 0xee);
        assert!(right, "nothing but what the journal holds is written");
        got.iter().map(|&byte| byte == 0xee).collect()
    };
    let (mut cuts, mut dones) = (0, 0);
    for writes in 1.. {
        let left = Arc::new(AtomicUsize::new(writes));
        let (log, disk) = (copy(&journal), copy(&blank));
        let cut =
            |below: &Arc<MemoryBackend>| Cut { below: Arc::clone(below), left: Arc::clone(&left) };
        let outcome = rescue(Arc::new(cut(&log)), &cut(&disk));
        if outcome.is_ok() {
            assert_eq!(left.load(Ordering::Relaxed), 1, "the first number that is enough");
            break;
        }
        cuts += 1;
        let source = Source::of(Arc::clone(&log) as _, None, None).unwrap();
        let volume = source.find(&arguments("a")).unwrap();
        // A torn superblock may be whole all the same, as its rest is zeroes before and after. Then
        // it says the truth.
        let is_done = volume.disk.released == Released::Applied;
        drop(source);
        if !is_done {
            rescue(Arc::clone(&log) as _, &*disk).unwrap();
        }
        dones += usize::from(is_done);
        let got = content(&*disk);
        let is_right =
            |at: usize| if untouched[at] { got[at] == 0xee } else { got[at] == expected[at] };
        assert!((0..got.len()).all(is_right), "cut off at write {writes}");
        let source = Source::of(Arc::clone(&log) as _, None, None).unwrap();
        assert_eq!(source.held(source.volumes()[0].number).records, 0);
        assert_eq!(source.held(source.volumes()[1].number).records, 6, "the other one's stay");
        // Once more changes nothing, whoever has the disk now.
        put(&*disk, 0, &[0x77; 4096]);
        rescue(Arc::clone(&log) as _, &*disk).unwrap();
        assert_eq!(content(&*disk)[..4096], [0x77; 4096]);
    }
    assert!(cuts >= 6 && dones <= 2, "{cuts}");
}

/// A disk that says it has taken everything, and has not.
struct Liar(MemoryBackend);

impl Backend for Liar {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn submit(&self, io: Io) {
        if io.kind.changes_data() { io.done.complete(Ok(())) } else { self.0.submit(io) }
    }
}

#[test]
fn a_disk_that_does_not_hold_what_was_written_is_found_out() {
    let (journal, _) = journal();
    let liar = Liar(MemoryBackend::new(DISK_BYTES).unwrap());
    let error = rescue(Arc::clone(&journal) as _, &liar).unwrap_err().to_string();
    assert!(error.contains("reads differently"), "{error}");
    let source = Source::of(journal, None, None).unwrap();
    assert_eq!(source.held(source.volumes()[0].number).records, 7, "nothing is marked as done");
}

/// Everything that looks and everything that writes, on whatever this is.
fn poke(device: &Arc<MemoryBackend>) {
    let Ok(source) = Source::of(Arc::clone(device) as _, None, None) else { return };
    for as_json in [false, true] {
        assert!(!show::listed(&source, as_json).is_empty());
        assert!(!show::verified(&source, as_json).is_empty());
    }
    for volume in source.volumes() {
        let disk = MemoryBackend::new(DISK_BYTES).unwrap();
        let _ = apply(&source, volume, &disk, Words { force: true, accept_loss: true });
    }
}

/// A change of a superblock that has the right checksum all the same.
fn contradict(superblock: &mut Superblock, field: usize, value: u64) {
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
    fn no_journal_is_so_broken_that_the_rescue_breaks(
        wrecks in proptest::collection::vec((0_u64..400, 0_usize..4096, any::<u8>()), 0..12),
        length in prop_oneof![
            3 => Just(JOURNAL_BYTES_MIN),
            1 => (1..JOURNAL_BYTES_MIN / 512).prop_map(|sectors| sectors * 512),
        ],
        lies in proptest::collection::vec((0_usize..12, any::<u64>(), 0_u32..64), 0..3),
        keeps_sum: bool,
    ) {
        let (journal, _) = journal();
        // Behind these there are only zeroes.
        let mut bytes = content(&*journal)[..1 << 20].to_vec();
        // Most of what there is lies in the superblocks and the first blocks behind them.
        for (block, at, value) in wrecks {
            let block = if block < 300 { LOG_OFFSET / 4096 + block % 24 } else { block % 32 };
            bytes[block as usize * 4096 + at] ^= value;
        }
        if keeps_sum && let Ok(mut superblock) = Superblock::decode(&bytes[..SUPERBLOCK_BYTES]) {
            for (field, value, shift) in lies {
                contradict(&mut superblock, field, value >> shift);
            }
            bytes[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.encode());
            bytes[SUPERBLOCK_BYTES..2 * SUPERBLOCK_BYTES].fill(0);
        }
        let device = MemoryBackend::new(length).unwrap();
        put(&device, 0, &bytes[..length.min(1 << 20) as usize]);
        poke(&Arc::new(device));
    }

    #[test]
    fn bytes_that_are_no_journal_do_not_break_the_rescue(
        seed: u64,
        sectors in 1_u64..4096,
        looks_like_one: bool,
    ) {
        let device = MemoryBackend::new(sectors * 512).unwrap();
        let mut state = seed | 1;
        let mut bytes: Vec<u8> = (0..sectors * 512).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        }).collect();
        if looks_like_one {
            bytes[..12].copy_from_slice(b"FOREBAYJ\x01\0\0\0");
        }
        put(&device, 0, &bytes);
        poke(&Arc::new(device));
    }
}
