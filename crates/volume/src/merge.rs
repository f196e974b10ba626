//! Coalescing of adjacent I/Os.

use crate::blocks::can_join;
use forebay_engine::IoVerb;
use forebay_types::{ByteRange, VolumeId};

/// Limit of a coalesced write, in bytes. Beyond a few stripes, longer writes gain nothing.
pub const WRITTEN_BYTES_MAX: u64 = 4 << 20;
/// Limit of a coalesced read, and of one prefetch I/O of a client that reads no more at a time, in
/// bytes. A read is answered only when its
/// last byte has arrived, so a longer one would delay answers. Shorter ones cost little: a hard
/// disk loses no time between two reads if the second is queued.
pub const READ_BYTES_MAX: u64 = 64 << 10;

/// An I/O that may be coalesced with its neighbours.
pub trait Mergeable {
    /// Read, write, discard or zero.
    fn verb(&self) -> IoVerb;
    fn volume(&self) -> VolumeId;
    /// Its bytes on the volume.
    fn range(&self) -> ByteRange;
    /// The block size of the volume's disk, in bytes.
    fn block_bytes(&self) -> u64;
}

/// Sorts `ios` by volume, verb and offset, and calls `each` with every run that can be one I/O.
/// Only reads, and writes without FUA, are coalesced. Two writes whose gap lies in blocks that a
/// read-modify-write reads anyway are one run too.
pub fn merge<T: Mergeable>(ios: &mut [T], mut each: impl FnMut(&mut [T])) {
    if ios.len() > 1 {
        ios.sort_by_key(|io| (io.volume(), rank(io.verb()), io.range().offset));
    }
    let mut rest = ios;
    while !rest.is_empty() {
        let mut len = 1;
        let mut bytes = rest[0].range().len;
        let bytes_max = match rest[0].verb() {
            IoVerb::Read => READ_BYTES_MAX,
            _ => WRITTEN_BYTES_MAX,
        };
        while len < rest.len() && follows(&rest[len - 1], &rest[len]) {
            bytes += rest[len].range().len;
            if bytes > bytes_max {
                break;
            }
            len += 1;
        }
        let (run, after) = rest.split_at_mut(len);
        each(run);
        rest = after;
    }
}

fn rank(verb: IoVerb) -> u8 {
    match verb {
        IoVerb::Read => 0,
        IoVerb::Write { fua: false } => 1,
        IoVerb::Write { fua: true } => 2,
        IoVerb::Discard => 3,
        IoVerb::Zero { .. } => 4,
    }
}

fn follows<T: Mergeable>(first: &T, second: &T) -> bool {
    let is_joined = match first.verb() {
        IoVerb::Read => first.range().end() == second.range().offset,
        IoVerb::Write { fua: false } => {
            can_join(first.range(), second.range(), first.block_bytes())
        }
        _ => false,
    };
    is_joined && first.volume() == second.volume() && first.verb() == second.verb()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Io(IoVerb, u16, u64, u64);

    impl Mergeable for Io {
        fn verb(&self) -> IoVerb {
            self.0
        }
        fn volume(&self) -> VolumeId {
            VolumeId(self.1)
        }
        fn range(&self) -> ByteRange {
            ByteRange::new(self.2, self.3)
        }
        /// The disk of volume 2 has larger blocks.
        fn block_bytes(&self) -> u64 {
            if self.1 == 2 { 4096 } else { 512 }
        }
    }

    fn runs(mut ios: Vec<Io>) -> Vec<Vec<u64>> {
        let mut runs = Vec::new();
        merge(&mut ios, |run| runs.push(run.iter().map(|io| io.2).collect()));
        runs
    }

    #[test]
    fn adjacent_ios_of_one_verb_and_volume_are_coalesced() {
        let read = IoVerb::Read;
        let write = IoVerb::Write { fua: false };
        let fua = IoVerb::Write { fua: true };
        assert_eq!(
            runs(vec![
                Io(read, 1, 8192, 4096),
                Io(read, 1, 4096, 4096),
                Io(write, 1, 12288, 4096),
                Io(read, 2, 12288, 4096),
                Io(read, 1, 20480, 4096),
            ]),
            vec![vec![4096, 8192], vec![20480], vec![12288], vec![12288]]
        );
        assert_eq!(runs(vec![Io(fua, 1, 0, 512), Io(fua, 1, 512, 512)]), vec![vec![0], vec![512]]);
    }

    #[test]
    fn writes_in_one_block_are_coalesced() {
        let write = IoVerb::Write { fua: false };
        let in_block = |volume| vec![Io(write, volume, 0, 512), Io(write, volume, 2560, 512)];
        assert_eq!(runs(in_block(1)), vec![vec![0], vec![2560]]);
        assert_eq!(runs(in_block(2)), vec![vec![0, 2560]]);
    }

    #[test]
    fn overlapping_reads_are_not_coalesced() {
        let read = IoVerb::Read;
        assert_eq!(
            runs(vec![Io(read, 1, 0, 4096), Io(read, 1, 0, 4096), Io(read, 1, 4096, 512)]),
            vec![vec![0], vec![0, 4096]]
        );
    }

    #[test]
    fn a_run_is_limited_in_bytes() {
        let lengths = |verb| {
            let ios = (0..129).map(|i| Io(verb, 1, i << 15, 1 << 15)).collect();
            runs(ios).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(lengths(IoVerb::Write { fua: false }), [128, 1]);
        assert_eq!(lengths(IoVerb::Read)[..2], [2, 2]);
    }
}
