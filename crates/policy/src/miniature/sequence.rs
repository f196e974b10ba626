//! Whether hits are read in sequence. Streams begin with misses, so what is read in sequence and is
//! in the pool as a whole is not read ahead, and no stream knows of it.
//!
//! After some of the sampled hits, the watch waits for reads that continue where that one ended.
//! While it waits, all hits of the volume in the shard are looked at, which costs some nanoseconds
//! for each; so it waits after few of them and not long.

use super::ReadKind;
use forebay_types::{LINE_BYTES, REGION_BYTES};

/// One of so many sampled hits is watched, by its kind: a line that is taken for one in sequence
/// more often, because that assumption counts.
const HIT_PERIOD: u8 = 16;
const IN_SEQUENCE_PERIOD: u8 = 4;
/// From so many lines on, a read that was read ahead is in sequence: 256 KiB.
const LONG_READ_LINES: u64 = 64;
/// The reads within which the next one in sequence is expected. So many clients may read at once.
const READS_MAX: u8 = 32;
/// The reads that make a sequence, after the first one.
const FOLLOWING: u8 = 2;

/// Watches the reads of one volume in a shard. See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequenceWatch {
    /// Sampled hits since the last one that was watched, in parts of a period.
    hits: u8,
    /// The number of them at which the next one is watched: half to one and a half periods,
    /// different each time. Otherwise a loop might have the same lines watched in each pass.
    hits_max: u8,
    /// Hits that were watched.
    count: u8,
    watched: Option<Watched>,
}

/// What follows from a sampled read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchStep {
    /// Nothing.
    None,
    /// The watch wants to know of all reads from now on.
    Begun,
    /// The line was read in sequence.
    InSequence,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    /// The hash of the sampled line.
    hash: u64,
    /// Where the next read in sequence begins.
    next: u64,
    /// Reads since the last one in sequence.
    reads: u8,
    following: u8,
}

impl SequenceWatch {
    /// A sampled line was read, as one of those from `first` to before `end`.
    pub fn begin(&mut self, hash: u64, kind: ReadKind, first: u64, end: u64) -> WatchStep {
        let steps = match kind {
            ReadKind::Missed => return WatchStep::None,
            ReadKind::Hit => 1,
            ReadKind::InSequence => HIT_PERIOD / IN_SEQUENCE_PERIOD,
            ReadKind::Ahead if end - first >= LONG_READ_LINES => return WatchStep::InSequence,
            ReadKind::Ahead => 0,
        };
        self.hits = self.hits.saturating_add(steps);
        if self.hits < self.hits_max && kind != ReadKind::Ahead {
            return WatchStep::None;
        }
        self.hits = 0;
        self.count = self.count.wrapping_add(1);
        // An odd factor: all of a period's numbers, in an order without a pattern.
        self.hits_max = HIT_PERIOD / 2 + (self.count.wrapping_mul(0x9d) >> 4);
        // Another shard has the next region.
        if self.watched.is_some() || (end * LINE_BYTES).is_multiple_of(REGION_BYTES) {
            return WatchStep::None;
        }
        self.watched = Some(Watched { hash, next: end, reads: 0, following: 0 });
        WatchStep::Begun
    }

    /// Whether it waits for reads.
    pub const fn is_waiting(&self) -> bool {
        self.watched.is_some()
    }

    /// A client reads the lines from `first` to before `end`. Returns the hash of the watched line,
    /// and whether it was read in sequence, once that is known.
    pub fn read(&mut self, first: u64, end: u64) -> Option<(u64, bool)> {
        let watched = self.watched.as_mut()?;
        watched.reads += 1;
        if first == watched.next {
            (watched.next, watched.reads) = (end, 0);
            watched.following += 1;
        }
        let is_in_sequence = watched.following >= FOLLOWING;
        if !is_in_sequence && watched.reads < READS_MAX {
            return None;
        }
        let hash = watched.hash;
        self.watched = None;
        Some((hash, is_in_sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result for a watched read of one line at 100, and reads of one line after it.
    fn watch(reads: impl IntoIterator<Item = u64>) -> Option<(u64, bool)> {
        let mut watch = SequenceWatch::default();
        assert_eq!(watch.begin(7, ReadKind::Ahead, 100, 101), WatchStep::Begun);
        assert_eq!(watch.begin(8, ReadKind::Ahead, 200, 201), WatchStep::None, "one at a time");
        let found = reads.into_iter().find_map(|line| watch.read(line, line + 1));
        assert_eq!(watch.is_waiting(), found.is_none());
        found
    }

    fn watched_of_160(kind: ReadKind) -> usize {
        let mut watch = SequenceWatch::default();
        let begun = (0..160).filter(|_| {
            let step = watch.begin(7, kind, 100, 101);
            while watch.read(0, 1).is_none() && watch.is_waiting() {}
            step == WatchStep::Begun
        });
        begun.count()
    }

    #[test]
    fn few_hits_are_watched() {
        let kinds = [ReadKind::Missed, ReadKind::Hit, ReadKind::InSequence, ReadKind::Ahead];
        let [missed, hits, in_sequence, ahead] = kinds.map(watched_of_160);
        assert_eq!((missed, ahead), (0, 160));
        assert!(
            (9..=13).contains(&hits) && (34..=46).contains(&in_sequence),
            "{hits} {in_sequence}"
        );
    }

    #[test]
    fn a_read_up_to_the_end_of_a_region_cannot_be_watched() {
        let mut watch = SequenceWatch::default();
        assert_eq!(watch.begin(7, ReadKind::Ahead, 255, 256), WatchStep::None);
        assert_eq!(watch.begin(7, ReadKind::Ahead, 0, 256), WatchStep::InSequence, "a long one");
        assert_eq!(watch.begin(7, ReadKind::Hit, 0, 256), WatchStep::None);
    }

    #[test]
    fn reads_that_follow_one_another_are_a_sequence() {
        assert_eq!(watch([101, 102]), Some((7, true)));
        let beside_others = (0..30).chain([101]).chain(30..60).chain([102]);
        assert_eq!(watch(beside_others), Some((7, true)), "other clients read meanwhile");
        assert_eq!(watch([101, 103]), None);
    }

    #[test]
    fn other_reads_are_none() {
        assert_eq!(watch(200..231), None);
        assert_eq!(watch(200..232), Some((7, false)));
        assert_eq!(watch([101].into_iter().chain(200..232)), Some((7, false)));
    }
}
