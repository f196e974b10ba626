use crate::checkpoint::{CheckpointReader, encode, part_ref};
use crate::map::PAGE_SECTORS;
use crate::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SECTORS: u64 = 2 * PAGE_SECTORS + 40;
const KEY: VolumeKey = VolumeKey { volume: [7; 16], epoch: 3, nonce: 99 };
const SETTINGS: LogSettings = LogSettings { object_sectors: 24, buffer_sectors: 96 };

/// One byte for each sector stands for its content.
type Model = Vec<u8>;

#[derive(Clone, Debug)]
enum Step {
    Write {
        start: u64,
        len: u64,
        value: u8,
    },
    Erase {
        start: u64,
        len: u64,
    },
    Seal,
    /// The object on its way that is stored next, of those.
    Store(usize),
    Collect(usize),
    Checkpoint,
}

fn ranges() -> impl Strategy<Value = (u64, u64)> {
    // Around the borders of pages, where they overlap.
    let starts =
        prop_oneof![0..40u64, PAGE_SECTORS - 20..PAGE_SECTORS + 20, 2 * PAGE_SECTORS..SECTORS];
    (starts, 1..30u64).prop_map(|(start, len)| (start, len.min(SECTORS - start)))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (ranges(), 1..=255u8)
            .prop_map(|((start, len), value)| Step::Write { start, len, value }),
        2 => ranges().prop_map(|(start, len)| Step::Erase { start, len }),
        1 => Just(Step::Erase { start: 0, len: SECTORS }),
        2 => Just(Step::Seal),
        4 => (0..4usize).prop_map(Step::Store),
        2 => (0..64usize).prop_map(Step::Collect),
        1 => Just(Step::Checkpoint),
    ];
    prop::collection::vec(step, 1..80)
}

/// The store, and what is on its way to it.
struct World {
    log: ObjectLog,
    stored: BTreeMap<ObjectName, Vec<u8>>,
    /// Every object that was ever sealed, for an oracle that knows no map.
    history: BTreeMap<u64, Vec<u8>>,
    flying: Vec<std::sync::Arc<SealedObject>>,
    manifest: Manifest,
    parts: Vec<Vec<u8>>,
    snapshot: Option<MapSnapshot>,
}

impl World {
    fn new() -> Self {
        let manifest = Manifest {
            volume: KEY.volume,
            size_bytes: SECTORS * SECTOR_BYTES,
            epoch: KEY.epoch,
            former: 0,
            nonce: KEY.nonce,
            serial: 0,
            owner: "o".into(),
            first: 1,
            replay: vec![KEY.epoch],
            checkpoint: None,
        };
        let log = ObjectLog::new(KEY, SETTINGS, Default::default(), 1, 0);
        let (stored, history, flying, parts) = Default::default();
        Self { log, stored, history, flying, manifest, parts, snapshot: None }
    }

    fn begin_puts(&mut self) {
        while let Some(object) = self.log.next_put() {
            let bytes = [&object.head[..], &object.frames].concat();
            self.history.insert(object.name.number, bytes);
            self.flying.push(object);
        }
    }

    fn store(&mut self, index: usize) {
        if self.flying.is_empty() {
            return;
        }
        let object = self.flying.remove(index % self.flying.len());
        let bytes = self.history[&object.name.number].clone();
        self.stored.insert(object.name, bytes);
        self.log.stored(object.name.number);
        self.end_checkpoint();
    }

    fn end_checkpoint(&mut self) {
        let missing = self.log.first_missing();
        let Some(snapshot) = self.snapshot.take_if(|snapshot| snapshot.covers < missing) else {
            return;
        };
        self.parts = encode(KEY, &snapshot).collect();
        self.manifest.first = snapshot.covers + 1;
        self.manifest.serial += 1;
        self.manifest.checkpoint = Some(CheckpointRef {
            epoch: KEY.epoch,
            covers: snapshot.covers,
            parts: self.parts.iter().map(|part| part_ref(part)).collect(),
        });
        self.log.checkpointed(&snapshot.unused);
        snapshot.unused.iter().for_each(|name| drop(self.stored.remove(name)));
    }

    fn collect(&mut self, index: usize) {
        let missing = self.log.first_missing();
        let known: Vec<ObjectName> =
            self.stored.keys().copied().filter(|name| name.number < missing).collect();
        if known.is_empty() {
            return;
        }
        let name = known[index % known.len()];
        let (header, runs, frames) = open(&self.stored[&name]);
        frames::verify(frames, name, 0).unwrap();
        for run in self.log.live_runs(name.number, &runs) {
            let mut data = vec![0; (run.len * SECTOR_BYTES) as usize];
            frames::load(frames, run.at, &mut data);
            self.log.relocate(name.number, run, &data);
        }
        assert_eq!(header.name, name);
        assert!(self.log.table().get(name.number).is_none_or(|object| object.live == 0));
    }

    /// The volume through the map of `log`.
    fn content(&self, log: &ObjectLog) -> Model {
        let mut model = vec![0; SECTORS as usize];
        for piece in log.pieces(0, SECTORS) {
            let Some(place) = piece.place else { continue };
            let mut data = vec![0; (piece.len * SECTOR_BYTES) as usize];
            if !log.load(place, &mut data) {
                let object = log.table().get(place.object).unwrap();
                let name = ObjectName { epoch: object.epoch, number: place.object };
                let bytes = &self.stored[&name][object.data_offset() as usize..];
                let range = frames::range_of(place.at, piece.len, object.sectors.into());
                let base = place.at / frames::FRAME_SECTORS * frames::FRAME_SECTORS;
                let frames = &bytes[range.start as usize..range.end as usize];
                frames::verify(frames, name, base).unwrap();
                frames::load(frames, place.at - base, &mut data);
            }
            for (index, sector) in data.chunks(SECTOR_BYTES as usize).enumerate() {
                assert!(sector.iter().all(|byte| *byte == sector[0]));
                model[piece.start as usize + index] = sector[0];
            }
        }
        model
    }

    /// The volume after the objects up to `last`, without any map.
    fn oracle(&self, last: u64) -> Model {
        let mut model = vec![0; SECTORS as usize];
        for bytes in self.history.range(..=last).map(|(_, bytes)| bytes) {
            let (_, runs, frames) = open(bytes);
            let mut at = 0;
            for run in runs {
                for sector in 0..run.len {
                    let mut data = [0; SECTOR_BYTES as usize];
                    if !run.is_erased {
                        frames::load(frames, at, &mut data);
                        at += 1;
                    }
                    model[(run.start + sector) as usize] = data[0];
                }
            }
        }
        model
    }

    /// The volume as the next owner finds it.
    fn recovered(&self) -> ObjectLog {
        let manifest = Manifest::decode(&self.manifest.encode()).unwrap();
        assert_eq!(manifest, self.manifest);
        let (map, table) = match &manifest.checkpoint {
            None => Default::default(),
            Some(found) => {
                let mut reader =
                    CheckpointReader::new(KEY.volume, found.epoch, found.covers, SECTORS);
                for (part, expected) in self.parts.iter().zip(&found.parts) {
                    reader.read(part, *expected).unwrap();
                }
                reader.end().unwrap()
            }
        };
        let mut replay = Replay::new(&manifest, map, table);
        while let Some(bytes) = self.stored.get(&replay.next()) {
            let (header, runs, _) = open(bytes);
            replay.apply(&header, &runs).unwrap();
        }
        let (found, next, applied) = replay.end();
        ObjectLog::new(KEY, SETTINGS, found, next, applied)
    }
}

/// Header, runs and frames of an object.
fn open(bytes: &[u8]) -> (ObjectHeader, Vec<SectorRun>, &[u8]) {
    let header = ObjectHeader::decode(bytes).unwrap();
    let runs = header.decode_runs(&bytes[HEADER_BYTES as usize..], SECTORS).unwrap();
    assert_eq!(header.object_bytes(), bytes.len() as u64);
    (header, runs, &bytes[header.data_offset() as usize..])
}

/// Counts what the map has of each object, which the table must have too.
fn self_check(log: &ObjectLog) {
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    let pieces = log.pieces(0, SECTORS);
    assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), SECTORS);
    for piece in &pieces {
        if let Some(place) = piece.place {
            *used.entry(place.object).or_default() += piece.len;
        }
    }
    let mut unused = 0;
    for (number, object) in log.table().iter() {
        assert_eq!(u64::from(object.live), used.remove(&number).unwrap_or(0), "object {number}");
        unused += if object.live == 0 { u64::from(object.sectors) } else { 0 };
    }
    assert!(used.is_empty());
    assert_eq!(log.table().unused(), unused);
    let fragments: u64 = log.map().pages().map(|(_, page)| page.fragments().len() as u64).sum();
    assert_eq!(log.map().fragment_count(), fragments);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// At any moment, the volume reads as it was written; the next owner finds a prefix of what was
    /// written, at least what was flushed.
    #[test]
    fn a_volume_is_a_prefix_of_what_was_written(steps in steps()) {
        let mut world = World::new();
        let mut model = vec![0u8; SECTORS as usize];
        for step in steps {
            match step {
                Step::Write { start, len, value } => {
                    let data = vec![value; (len * SECTOR_BYTES) as usize];
                    world.log.write(start, &data);
                    model[start as usize..(start + len) as usize].fill(value);
                }
                Step::Erase { start, len } => {
                    world.log.erase(start, len);
                    prop_assert!(world.log.map().is_hole(start, len));
                    model[start as usize..(start + len) as usize].fill(0);
                }
                Step::Seal => world.log.seal(),
                Step::Store(index) => world.store(index),
                Step::Collect(index) => world.collect(index),
                Step::Checkpoint if world.snapshot.is_none() => {
                    world.snapshot = Some(world.log.snapshot());
                    world.begin_puts();
                    world.end_checkpoint();
                }
                Step::Checkpoint => {}
            }
            world.begin_puts();
            self_check(&world.log);
            let recovered = world.recovered();
            self_check(&recovered);
            let found = recovered.last_number();
            prop_assert_eq!(found + 1, world.log.first_missing());
            prop_assert_eq!(world.content(&recovered), world.oracle(found));
        }
        prop_assert_eq!(world.content(&world.log), model.clone());
        // A flush.
        world.log.seal();
        world.begin_puts();
        while !world.flying.is_empty() {
            world.store(1);
        }
        let recovered = world.recovered();
        prop_assert_eq!(world.content(&recovered), model);
        prop_assert_eq!(recovered.map(), world.log.map());
    }

    /// The map against a list of sectors.
    #[test]
    fn pieces_cover_a_range_and_are_where_they_were_put(
        changes in prop::collection::vec((ranges(), prop::option::of((1..5u64, 0..100u64))), 1..60),
        asked in ranges(),
    ) {
        let mut map = ExtentMap::default();
        let mut model: Vec<Option<ObjectPlace>> = vec![None; SECTORS as usize];
        for ((start, len), place) in changes {
            let mut freed = 0;
            match place {
                Some((object, at)) => {
                    let place = ObjectPlace { object, at };
                    map.insert(start, len, place, |_, sectors| freed += sectors);
                }
                None => map.remove(start, len, |_, sectors| freed += sectors),
            }
            let range = start as usize..(start + len) as usize;
            prop_assert_eq!(freed, model[range.clone()].iter().flatten().count() as u64);
            for (index, entry) in model[range].iter_mut().enumerate() {
                let place = place.map(|(object, at)| ObjectPlace { object, at: at + index as u64 });
                *entry = place;
            }
        }
        let (start, len) = asked;
        let mut next = start;
        for piece in map.pieces(start, len) {
            prop_assert_eq!(piece.start, next);
            for sector in 0..piece.len {
                let place = piece.place.map(|place| ObjectPlace { at: place.at + sector, ..place });
                prop_assert_eq!(place, model[(next + sector) as usize]);
            }
            next += piece.len;
        }
        prop_assert_eq!(next, start + len);
        let asked = &model[start as usize..next as usize];
        prop_assert_eq!(map.is_hole(start, len), asked.iter().all(Option::is_none));
    }

    /// Whatever is changed or missing is detected.
    #[test]
    fn damage_is_detected(
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
        is_cut in any::<bool>(),
    ) {
        let mut world = World::new();
        for sector in 0..30 {
            world.log.write(sector * 3, &[5; 1024]);
        }
        world.log.erase(3, 4);
        world.log.seal();
        world.begin_puts();
        while !world.flying.is_empty() {
            world.store(0);
        }
        let snapshot = world.log.snapshot();
        let damage = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let at = at.index(bytes.len());
            match is_cut {
                true => bytes.truncate(at),
                false => bytes[at] ^= 1 << bit,
            }
            bytes
        };
        prop_assert!(Manifest::decode(&damage(&world.manifest.encode())).is_err());
        for part in encode(KEY, &snapshot) {
            let damaged = damage(&part);
            let reader = || CheckpointReader::new(KEY.volume, KEY.epoch, snapshot.covers, SECTORS);
            prop_assert!(reader().read(&damaged, part_ref(&part)).is_err());
            prop_assert!(reader().read(&damaged, part_ref(&damaged)).is_err());
            prop_assert!(reader().read(&part, part_ref(&part)).is_ok());
        }
        for (name, bytes) in &world.stored {
            let damaged = damage(bytes);
            let found = ObjectHeader::decode(&damaged).and_then(|header| {
                assert_eq!(header.name, *name);
                header.decode_runs(&damaged[HEADER_BYTES as usize..], SECTORS)?;
                let frames = &damaged[header.data_offset() as usize..];
                if header.object_bytes() != damaged.len() as u64 {
                    return Err(Damaged::Short);
                }
                frames::verify(frames, *name, 0)
            });
            prop_assert!(found.is_err());
        }
    }

    /// Nothing that is read panics, whatever it is, also with a valid checksum.
    #[test]
    fn anything_can_be_read(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        kind in 0..3u8,
    ) {
        let magic = [b"FBmf\x01\0\0\0", b"FBob\x01\0\0\0", b"FBcp\x01\0\0\0"][kind as usize];
        let len = bytes.len().min(8);
        bytes[..len].copy_from_slice(&magic[..len]);
        if kind == 1 {
            bytes.truncate(HEADER_BYTES as usize - 4);
        }
        codec::seal(&mut bytes);
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert_eq!(manifest.encode(), bytes.clone());
        }
        if let Ok(header) = ObjectHeader::decode(&bytes) {
            let _ = header.decode_runs(&bytes[HEADER_BYTES as usize..], SECTORS);
        }
        let mut reader = CheckpointReader::new([0; 16], 0, 0, SECTORS);
        if reader.read(&bytes, part_ref(&bytes)).is_ok() {
            let _ = reader.end();
        }
    }
}

/// The bytes of a part behind its place can be anything.
#[test]
fn entries_of_a_checkpoint_are_checked() {
    let mut runner = proptest::test_runner::TestRunner::default();
    let entries = prop::collection::vec(0..4u8, 0..120);
    runner
        .run(&entries, |entries| {
            let mut bytes = b"FBcp\x01\0\0\0".to_vec();
            bytes.extend([0; 36]);
            bytes.extend(entries);
            codec::seal(&mut bytes);
            let mut reader = CheckpointReader::new([0; 16], 0, 0, SECTORS);
            if reader.read(&bytes, part_ref(&bytes)).is_ok() {
                let _ = reader.end();
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn two_terabytes_are_erased_at_once() {
    let sectors = 2u64 << 31;
    let mut log = ObjectLog::new(KEY, SETTINGS, Default::default(), 1, 0);
    let begin = std::time::Instant::now();
    log.erase(0, sectors);
    assert!(log.is_open_empty(), "nothing is recorded for what is empty");
    for gigabyte in 0..2048 {
        log.write(gigabyte << 21, &[1; 4096]);
    }
    log.erase(0, sectors);
    assert!(log.map().is_hole(0, sectors));
    assert!(begin.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn a_write_to_the_open_object_takes_no_room_again() {
    let mut log = ObjectLog::new(KEY, SETTINGS, Default::default(), 1, 0);
    for value in 0..100 {
        log.write(8, &[value; 4096]);
    }
    assert_eq!(log.buffered_sectors(), 8);
    log.seal();
    let object = log.next_put().unwrap();
    let (_, runs, frames) = {
        let bytes = [&object.head[..], &object.frames].concat();
        let (header, runs, _) = open(&bytes);
        (header, runs, object.frames.clone())
    };
    assert_eq!(runs, [SectorRun { start: 8, len: 8, is_erased: false }]);
    let mut data = [0; 4096];
    frames::load(&frames, 0, &mut data);
    assert_eq!(data, [99; 4096]);
    assert_eq!(log.next_put().map(|object| object.name), None);
    log.write(8, &[1; 512]);
    assert_eq!(log.buffered_sectors(), 9, "a sealed object never changes");
}

#[test]
fn tombstones_end_an_epoch() {
    let mut world = World::new();
    world.manifest.epoch = 5;
    world.manifest.replay = vec![3, 5];
    world.log.write(0, &[1; 512]);
    world.log.seal();
    world.begin_puts();
    let mut replay = Replay::new(&world.manifest, ExtentMap::default(), ObjectTable::default());
    let (header, runs, _) = open(&world.history[&1]);
    replay.apply(&header, &runs).unwrap();
    assert_eq!(replay.next(), ObjectName { epoch: 3, number: 2 });
    assert!(!replay.is_last_epoch());
    let tombstone = ObjectHeader {
        name: replay.next(),
        kind: ObjectKind::Tombstone,
        run_count: 0,
        sectors: 0,
        ..header
    };
    let bytes = tombstone.encode(&[]);
    assert_eq!(ObjectHeader::decode(&bytes), Ok(tombstone));
    replay.apply(&tombstone, &[]).unwrap();
    assert_eq!(replay.next(), ObjectName { epoch: 5, number: 3 });
    assert!(replay.is_last_epoch());
    // An object of another number does not follow.
    assert!(replay.apply(&header, &runs).is_err());
}

#[test]
fn names_are_read_back_and_sorted_like_numbers() {
    let names = [(1, 9), (1, 10), (2, 1), (300, 1 << 40)]
        .map(|(epoch, number)| ObjectName { epoch, number });
    let texts = names.map(|name| name.to_string());
    assert!(texts.is_sorted());
    assert_eq!(texts.each_ref().map(|text| ObjectName::parse(text)), names.map(Some));
    assert_eq!(checkpoint_of(&checkpoint_name(7, 300, 2)), Some((7, 300)));
    for other in ["manifest", "1/2", "map/x/0", "", "0000000000000001/+000000000000001"] {
        assert_eq!(ObjectName::parse(other), None, "{other}");
        assert_eq!(checkpoint_of(other), None, "{other}");
    }
}

#[test]
fn what_is_wasted_is_collected() {
    let settings = LogSettings { object_sectors: 2048, buffer_sectors: 4096 };
    let mut log = ObjectLog::new(KEY, settings, Default::default(), 1, 0);
    let write = |log: &mut ObjectLog, mib: u64| {
        log.write(mib << 11, &[1; 1 << 20]);
        while let Some(object) = log.next_put() {
            log.stored(object.name.number);
        }
    };
    (0..128).for_each(|mib| write(&mut log, mib));
    assert_eq!(log.collectable(), None, "little is wasted");
    // Half of every second object is written again.
    for mib in 0..64 {
        log.write(mib << 12, &[2; 512 << 10]);
        while let Some(object) = log.next_put() {
            log.stored(object.name.number);
        }
    }
    let name = log.collectable().unwrap();
    assert!(name.number <= 128 && name.number % 2 == 1, "{name}");
    let runs = [SectorRun { start: (name.number - 1) << 11, len: 2048, is_erased: false }];
    let live = log.live_runs(name.number, &runs);
    let half = LiveRun { start: ((name.number - 1) << 11) + 1024, len: 1024, at: 1024 };
    assert_eq!(live, [half]);
    // What is written meanwhile stays.
    log.write(half.start, &[3; 512]);
    log.relocate(name.number, half, &[1; 512 << 10]);
    let mut data = [0; 512];
    let first = log.pieces(half.start, 1)[0].place.unwrap();
    assert!(log.load(first, &mut data));
    assert_eq!(data, [3; 512]);
    assert_eq!(log.table().get(name.number).unwrap().live, 0);
    let snapshot = log.snapshot();
    assert!(snapshot.unused.contains(&name));
}
