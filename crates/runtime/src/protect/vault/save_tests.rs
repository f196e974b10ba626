//! Dumps to a disk in memory that fails, tears writes and flips bits. The loaded data is compared
//! with the saved data.

use super::super::LogReader;
use super::*;
use forebay_backend::layers::{ErrorLayer, ErrorRule, Kinds};
use forebay_backend::{Description, Io, IoKind, MemoryBackend};
use forebay_format::journal::{DiskInfo, Geometry, JournalId, LogKind, VolumeEntry};
use forebay_journal::{Damage, Found, Image, ReadAt, Source as Origin, recover_vault};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 48 * MIB;

/// Dirty sectors by volume and offset.
type Map = BTreeMap<(u16, u64), Vec<u8>>;

impl Source for Vec<(u16, u64, Vec<u8>)> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn fill(&self, mut at: usize, batch: &mut Batch) -> usize {
        while at < Vec::len(self) && batch.has_room(self[at].2.len(), 1) {
            batch.add(self[at].0, self[at].1, &self[at].2);
            at += 1;
        }
        at
    }
}

fn memory() -> Arc<MemoryBackend> {
    Arc::new(MemoryBackend::new(SIZE).unwrap())
}

fn volumes() -> Vec<VolumeEntry> {
    let entry = |number: u16| VolumeEntry {
        number,
        name: format!("v{number}"),
        size_bytes: 1 << 40,
        identity: [number as u8; 32],
        disk: DiskInfo::default(),
        void_before: 0,
    };
    vec![entry(1), entry(2)]
}

fn lines(count: u64, len: usize, seed: u64) -> Vec<(u16, u64, Vec<u8>)> {
    let content = |at: u64| (0..len as u64).map(|byte| (byte * 31 + at * 7 + seed) as u8).collect();
    (0..count).map(|at| (1 + (at % 2) as u16, at / 2 * 8192, content(at))).collect()
}

fn map_of(source: &[(u16, u64, Vec<u8>)]) -> Map {
    let pieces = source.iter().map(|(volume, offset, bytes)| ((*volume, *offset), bytes.clone()));
    pieces.collect()
}

const ID: JournalId = JournalId(*b"one of the dumps");

fn dump_of(id: JournalId) -> Dump {
    Dump::new(id, SIZE, Geometry::for_size(SIZE).unwrap(), 7, volumes())
}

/// Saves as [`Vault::dump`](super::super::Vault::dump) does.
fn save(
    backend: &dyn Backend,
    id: JournalId,
    source: &Vec<(u16, u64, Vec<u8>)>,
) -> (Result<bool, Stop>, u32) {
    let never = AtomicBool::new(false);
    let batches = (0..4).map(|_| Batch::new()).collect();
    let mut saver = Saver::new(backend, batches, dump_of(id), source, &never);
    let result = saver
        .write_superblock()
        .and_then(|()| saver.write(true))
        .and_then(|()| {
            saver.dump.seal();
            saver.write_superblock()
        })
        .and_then(|()| saver.verify(true, None, None));
    (result, saver.failures)
}

fn load(backend: &dyn Backend) -> (Found, Map) {
    let found = recover_vault(&mut LogReader(Blocking::new(backend)), SIZE).unwrap();
    let mut map = Map::new();
    for number in [1, 2] {
        for extent in Image::of_volume(&found.records, number).extents() {
            let Origin::Write { record, offset } = extent.source else { panic!("{extent:?}") };
            if found.records[record].is_damaged {
                continue;
            }
            let position = found.records[record].position + offset;
            let from = position / 4096 * 4096;
            let len = (position + extent.range.len - from).next_multiple_of(4096);
            let mut bytes = vec![0; len as usize];
            LogReader(Blocking::new(backend)).read_at(from, &mut bytes).unwrap();
            let at = (position - from) as usize;
            let bytes = bytes[at..at + extent.range.len as usize].to_vec();
            map.insert((number, extent.range.offset), bytes);
        }
    }
    (found, map)
}

fn is_sealed(found: &Found) -> bool {
    matches!(found.superblock.kind, LogKind::Vault { sealed: Some(_) })
}

fn copy(of: &dyn Backend) -> Arc<MemoryBackend> {
    let twin = memory();
    for offset in (0..SIZE).step_by(MIB as usize) {
        let mut buffer = AlignedBuffer::new(MIB as usize);
        Blocking::new(of).read(offset, &mut buffer).unwrap();
        Blocking::new(&*twin).write(offset, &buffer, false).unwrap();
    }
    twin
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn saved_data_is_loaded(
        pieces in prop::collection::btree_map(
            (1_u16..3, 0_u64..4000), (1_usize..9, any::<u8>()), 0..1500,
        ),
        old in 0_u64..3000,
    ) {
        let disk = memory();
        // The remains of an earlier dump must be ignored.
        let earlier = lines(old, 4096, 99);
        prop_assert_eq!(save(&*disk, JournalId([9; 16]), &earlier), (Ok(true), 0));
        let source: Vec<_> = pieces.iter().map(|(&(volume, line), &(sectors, value))| {
            (volume, line * 4096, vec![value; sectors * 512])
        }).collect();
        prop_assert_eq!(save(&*disk, ID, &source), (Ok(true), 0));
        let (found, map) = load(&*disk);
        prop_assert!(is_sealed(&found) && found.damage.is_empty());
        prop_assert!(map == map_of(&source));
    }
}

#[test]
fn whichever_write_or_read_or_flush_fails_everything_is_saved_elsewhere() {
    let source = lines(3000, 4096, 1);
    let mut failures = 0;
    for (kinds, count) in [(Kinds::WRITE, 20), (Kinds::READ, 14), (Kinds::FLUSH, 4)] {
        for after in 0..count {
            let disk = memory();
            let once = FailOnce::new(Arc::clone(&disk) as _, kinds, after);
            let (result, count) = save(&once, ID, &source);
            assert_eq!(result, Ok(true), "{kinds:?} {after}");
            failures += count;
            let (found, map) = load(&*disk);
            assert!(is_sealed(&found) && found.damage.is_empty(), "{kinds:?} {after}: {found:?}");
            assert!(map == map_of(&source), "{kinds:?} {after}");
        }
    }
    assert!(failures > 20, "only {failures} faults occurred");
}

#[test]
fn a_device_that_keeps_failing_is_an_error_and_written_batches_are_valid() {
    let source = lines(3000, 4096, 1);
    for after in 1..14 {
        let disk = memory();
        let rule = ErrorRule { kinds: Kinds::WRITE, after, ..ErrorRule::default() };
        let errors = ErrorLayer::new(Arc::clone(&disk) as _, rule);
        let (result, _) = save(&errors, ID, &source);
        assert!(result.is_err(), "{after}");
        let (found, map) = load(&*disk);
        assert!(!is_sealed(&found));
        let whole = map_of(&source);
        assert!(
            map.iter().all(|(place, bytes)| whole.get(place) == Some(bytes)),
            "loaded data is correct"
        );
        // The superblock is the first write. Concurrent writes may complete in any order.
        let batches = after.saturating_sub(5);
        assert!(map.len() as u64 >= batches * 250, "{after}: {}", map.len());
    }
}

#[test]
fn a_vault_that_is_too_small_is_an_error_and_holds_complete_batches() {
    let source = lines(20_000, 4096, 1);
    let disk = memory();
    assert_eq!(save(&*disk, ID, &source).0, Err(Stop::Full));
    let (found, map) = load(&*disk);
    assert!(!is_sealed(&found));
    assert!(map.len() as u64 * 4096 > SIZE / 10 * 8, "{}", map.len());
    let whole = map_of(&source);
    assert!(map.iter().all(|(place, bytes)| whole.get(place) == Some(bytes)));
}

#[test]
fn a_power_loss_at_any_moment_keeps_what_was_written_and_marks_the_dump_incomplete() {
    let source = lines(1500, 4096, 1);
    let disk = memory();
    let log = Recorder::new(Arc::clone(&disk) as _);
    assert_eq!(save(&log, ID, &source), (Ok(true), 0));
    let writes = log.writes.lock().unwrap();
    let whole = map_of(&source);
    for cut in 0..=writes.len() {
        // The write at the cut is torn, and all earlier writes are complete. A superblock is torn
        // after its head, as most of the rest is zeroes.
        let disk = memory();
        for (at, (offset, bytes)) in writes.iter().take(cut + 1).enumerate() {
            let torn = if bytes.len() == 64 << 10 { 4096 } else { bytes.len() / 2 / 4096 * 4096 };
            let len = if at == cut { torn } else { bytes.len() };
            let bytes = AlignedBuffer::from(&bytes[..len]);
            Blocking::new(&*disk).write(*offset, &bytes, false).unwrap();
        }
        let Ok(found) = recover_vault(&mut LogReader(Blocking::new(&*disk)), SIZE) else {
            assert_eq!(cut, 0, "only the first superblock may be missing");
            continue;
        };
        let (_, map) = load(&*disk);
        assert!(map.iter().all(|(place, bytes)| whole.get(place) == Some(bytes)));
        let is_all = cut >= writes.len();
        assert_eq!(is_sealed(&found), is_all, "cut {cut} of {}", writes.len());
        let batches = cut.saturating_sub(1).min(writes.len() - 2);
        assert!(map.len() >= batches * 250 || map == whole, "cut {cut}: {}", map.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_flipped_bit_is_noticed_and_wrong_data_never_loaded(
        at in 0_usize..3, bit in 0_u64..(8 << 20),
    ) {
        let source = lines(700, 4096, 1);
        let disk = memory();
        prop_assert_eq!(save(&*disk, ID, &source), (Ok(true), 0));
        // In a superblock or in a batch.
        let len = if at < 2 { 65536 } else { MIB };
        let byte = [0, 64 << 10, 128 << 10][at] + bit / 8 % len;
        let block = byte / 4096 * 4096;
        let mut bytes = AlignedBuffer::new(4096);
        Blocking::new(&*disk).read(block, &mut bytes).unwrap();
        bytes[(byte - block) as usize] ^= 1 << (bit % 8);
        Blocking::new(&*disk).write(block, &bytes, false).unwrap();
        let Ok(found) = recover_vault(&mut LogReader(Blocking::new(&*disk)), SIZE) else {
            return Err(TestCaseError::fail("one of the superblocks is intact"));
        };
        let (_, map) = load(&*disk);
        let whole = map_of(&source);
        for (place, bytes) in &map {
            prop_assert_eq!(whole.get(place), Some(bytes));
        }
        let noticed = !is_sealed(&found) || !found.damage.is_empty();
        prop_assert!(noticed || map == whole, "{:?}", found.damage);
    }
}

#[test]
fn a_batch_that_reads_back_wrong_is_written_elsewhere() {
    let source = lines(3000, 4096, 1);
    for target in 0..12 {
        let disk = memory();
        let flips = FlipOnce { inner: Arc::clone(&disk) as _, left: Mutex::new(target) };
        let (result, failures) = save(&flips, ID, &source);
        assert_eq!(result, Ok(true));
        // Superblocks are not read back.
        assert!(failures == 1 || target == 0, "{target}: {failures}");
        let (found, map) = load(&*disk);
        assert!(found.damage.is_empty(), "{target}: {:?}", found.damage);
        assert!(map == map_of(&source), "{target}");
    }
}

#[test]
fn missing_batches_of_a_sealed_dump_are_damage() {
    let source = lines(1500, 4096, 1);
    let disk = memory();
    save(&*disk, ID, &source).0.unwrap();
    let last = load(&*disk).0.records.last().unwrap().position / MIB * MIB;
    let twin = copy(&*disk);
    for offset in [last - MIB, last, last + MIB] {
        Blocking::new(&*twin).write(offset, &AlignedBuffer::new(MIB as usize), false).unwrap();
    }
    let (found, _) = load(&*twin);
    assert!(is_sealed(&found));
    assert!(matches!(found.damage[..], [Damage::Batches { next: None, .. }]), "{:?}", found.damage);
}

/// Fails one I/O of some kinds, after `left` have passed.
struct FailOnce {
    kinds: Kinds,
    left: Mutex<Option<u64>>,
    inner: Arc<dyn Backend>,
}

impl FailOnce {
    fn new(inner: Arc<dyn Backend>, kinds: Kinds, after: u64) -> Self {
        Self { kinds, left: Mutex::new(Some(after)), inner }
    }
}

impl Backend for FailOnce {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn submit(&self, io: Io) {
        if self.kinds.contains(io.kind) {
            let mut left = self.left.lock().unwrap();
            match *left {
                Some(0) => {
                    *left = None;
                    return io.done.complete(Err(IoError::Io));
                }
                Some(count) => *left = Some(count - 1),
                None => {}
            }
        }
        self.inner.submit(io);
    }
}

/// Flips a bit of one batch, and reports success.
struct FlipOnce {
    inner: Arc<dyn Backend>,
    left: Mutex<u64>,
}

impl Backend for FlipOnce {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn submit(&self, io: Io) {
        let offset = io.offset;
        let is_batch = matches!(io.kind, IoKind::Write { .. }) && offset >= 128 << 10;
        self.inner.submit(io);
        let mut left = self.left.lock().unwrap();
        *left = left.wrapping_sub(u64::from(is_batch));
        if is_batch && *left == u64::MAX {
            let mut block = AlignedBuffer::new(4096);
            Blocking::new(&*self.inner).read(offset, &mut block).unwrap();
            block[777] ^= 4;
            Blocking::new(&*self.inner).write(offset, &block, false).unwrap();
        }
    }
}

/// Records the writes, in order.
struct Recorder {
    inner: Arc<dyn Backend>,
    writes: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Recorder {
    fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, writes: Mutex::default() }
    }
}

impl Backend for Recorder {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn submit(&self, io: Io) {
        if matches!(io.kind, IoKind::Write { .. }) {
            // SAFETY: the I/O is in flight, so its memory is valid.
            let pieces = io.buffers.iter().flat_map(|b| unsafe { b.as_slice() }.iter().copied());
            self.writes.lock().unwrap().push((io.offset, pieces.collect()));
        }
        self.inner.submit(io);
    }
}
