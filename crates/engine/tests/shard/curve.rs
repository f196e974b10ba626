//! Which accesses a volume's miss-ratio curve counts, and the memory of all curves of a shard.

use crate::rig::{LINE, Rig, VOLUME, attempt_after};
use forebay_engine::{
    Attempt, LineMeta, Outbox, Part, PartId, ReadOutcome, Shard, ShardConfig, WriteOutcome,
    WriteTerms,
};
use forebay_policy::{MissRatioCurve, Weir};
use forebay_types::{ByteRange, Mode, VolumeId};

/// The smallest number of lines that a shard gets.
const SLOTS: usize = 512;

fn accesses(rig: &Rig) -> f64 {
    rig.shard.volume(VOLUME).curve().unwrap().accesses()
}

/// The lines of reads and writes according to the counters.
fn counted(rig: &Rig) -> f64 {
    let counters = rig.shard.volume(VOLUME).counters();
    let reads = counters.read_hit_lines + counters.read_miss_lines;
    (reads + counters.write_hit_lines + counters.write_miss_lines) as f64
}

#[test]
fn every_line_of_a_read_or_write_is_counted_once_in_every_mode() {
    let mut rig = Rig::new(SLOTS, 64, Mode::WriteBack);
    // Missed, retried, hit, and hit together with a missing line.
    rig.read_to_end(0, 4 * LINE);
    assert_eq!(accesses(&rig), 4.0);
    rig.read_to_end(LINE, LINE);
    rig.read_to_end(3 * LINE + 512, LINE);
    assert_eq!(accesses(&rig), 7.0);
    // New lines, an overwritten one, and a staged payload.
    assert_eq!(rig.write(1, 8 * LINE, 2 * LINE, 1), WriteOutcome::Done);
    assert_eq!(rig.write(2, 8 * LINE, 512, 2), WriteOutcome::Done);
    let slots = rig.stage(16 * LINE, 3 * LINE, 3).unwrap();
    let outcome = rig.write_staged(3, 16 * LINE, 3 * LINE, &slots, Attempt::default());
    assert_eq!(outcome, WriteOutcome::Done);
    assert_eq!(accesses(&rig), 13.0);
    // A write that has to wait.
    assert_eq!(rig.read(4, 32 * LINE, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.write(5, 32 * LINE, LINE, 4), WriteOutcome::Waiting);
    rig.complete_all();
    let outcome = rig.write_again(5, 32 * LINE, LINE, 4, false, attempt_after(None));
    assert_eq!(outcome, WriteOutcome::Done);
    assert_eq!(accesses(&rig), 15.0);
    assert_eq!(rig.flush_to_end(6), Ok(()));
    for mode in [Mode::WriteThrough, Mode::Bypass] {
        rig.shard.volume_mut(VOLUME).set_mode(mode);
        assert_eq!(rig.write(7, 0, 2 * LINE, 5), WriteOutcome::Started);
        rig.complete_all();
        rig.read(8, 40 * LINE, LINE);
        rig.complete_all();
    }
    assert_eq!((accesses(&rig), counted(&rig)), (21.0, 21.0));
}

#[test]
fn prefetches_erases_and_restores_are_not_counted() {
    let mut rig = Rig::new(SLOTS, 64, Mode::WriteBack);
    assert_eq!(rig.prefetch(0, 16 * LINE), 16);
    rig.complete_all();
    rig.zero(1, 0, LINE);
    rig.complete_all();
    assert_eq!(accesses(&rig), 0.0);
    let range = ByteRange::new(32 * LINE, LINE);
    let part = Part { id: PartId(2), volume: VOLUME, range, restores: true };
    let mut out = Outbox::default();
    let outcome = rig.shard.write(&part, WriteTerms::default(), Attempt::default(), &mut out);
    assert_eq!(outcome, WriteOutcome::Done);
    rig.shard.finish_call();
    assert_eq!(accesses(&rig), 0.0, "a restored line");
    // The first use of a prefetched line is an access like any other.
    rig.read_to_end(4 * LINE, LINE);
    assert_eq!(accesses(&rig), 1.0);
}

/// A shard that reads past its cache, so that only the curves take memory.
struct Reader {
    shard: Shard<Vec<LineMeta>>,
    out: Outbox,
}

impl Reader {
    fn new(slots: usize, volumes: u16) -> Self {
        let (config, policy) = (ShardConfig::for_slots(slots), Box::new(Weir::new(slots)));
        let mut shard = Shard::new(vec![LineMeta::FREE; slots], policy, config);
        for volume in (0..volumes).map(VolumeId) {
            shard.add_volume(volume, 1 << 40, Mode::Bypass);
        }
        Self { shard, out: Outbox::default() }
    }

    fn read(&mut self, volume: VolumeId, line: u64) {
        let range = ByteRange::new(line * LINE, LINE);
        let part = Part { id: PartId(0), volume, range, restores: false };
        let mut segments = Vec::new();
        self.shard.read(&part, Attempt::default(), &mut segments, &mut self.out);
        let ios: Vec<_> = self.out.ios.drain(..).map(|io| io.id).collect();
        ios.into_iter().for_each(|io| self.shard.complete(io, Ok(()), 0, &mut self.out));
        self.out.answers.clear();
        self.shard.finish_call();
    }

    fn curve(&self, volume: u16) -> Option<MissRatioCurve> {
        self.shard.volume(VolumeId(volume)).curve()
    }

    fn curve_bytes(&self, volumes: u16) -> usize {
        let volumes = (0..volumes).map(VolumeId).filter(|&id| self.shard.has_volume(id));
        volumes
            .filter(|&id| self.shard.volume(id).curve().is_some())
            .map(|id| self.shard.volume(id).curve_bytes())
            .sum()
    }
}

#[test]
fn all_curves_of_a_shard_take_less_than_a_thousandth_of_it() {
    for (slots, volumes) in [(SLOTS, 1), (SLOTS, 8), (4096, 1), (4096, 3), (4096, 40), (65_536, 2)]
    {
        let mut reader = Reader::new(slots, volumes);
        for line in 0..4 * slots as u64 {
            for volume in (0..volumes).map(VolumeId) {
                reader.read(volume, line);
            }
        }
        reader.shard.self_check();
        let (bytes, bytes_max) = (reader.curve_bytes(volumes), slots * LINE as usize / 1000);
        println!("{slots} lines, {volumes} volumes: {bytes} of {bytes_max} bytes");
        assert!((1..=bytes_max).contains(&bytes), "{bytes} of {bytes_max}");
        assert!(reader.curve(0).is_some(), "{slots} lines, {volumes} volumes");
    }
}

#[test]
fn a_volume_gets_a_curve_when_others_have_left() {
    let mut reader = Reader::new(SLOTS, 3);
    assert!(reader.curve(0).is_some());
    assert!(reader.curve(2).is_none(), "the memory is not enough for three curves");
    reader.shard.remove_volume(VolumeId(0));
    reader.shard.remove_volume(VolumeId(1));
    for _ in 0..3 {
        (0..100).for_each(|line| reader.read(VolumeId(2), line));
    }
    assert_eq!(reader.curve(2).unwrap().accesses(), 300.0);
}

#[test]
fn a_curve_decays_when_the_driver_calls_for_it() {
    let mut reader = Reader::new(SLOTS, 1);
    (0..1_000).for_each(|line| reader.read(VolumeId(0), line));
    reader.shard.volume_mut(VolumeId(0)).decay_curve(0.5);
    assert_eq!(reader.curve(0).unwrap().accesses(), 500.0);
}
