//! The needs of one worker's clients that are not reported to the volumes yet.

use crate::shared::Need;
use forebay_types::{ByteRange, LINE_BYTES, VolumeId};

/// The needs that a worker collects before it reports them.
const NEEDS_MAX: usize = 64;

/// See the module. It allocates once.
#[derive(Debug, Default)]
pub(crate) struct PendingNeeds(Vec<Need>);

impl PendingNeeds {
    /// Adds a need. Returns whether all must be reported now.
    #[must_use]
    pub(crate) fn add(&mut self, volume: VolumeId, range: ByteRange, lines: u32) -> bool {
        // The first uses of preloaded lines are reported line by line.
        if let Some(last) = self.0.last_mut()
            && last.volume == volume
            && last.range.end() == range.offset
            && u64::from(last.lines) * LINE_BYTES == last.range.len
        {
            last.range.len += range.len;
            last.lines += lines;
            return false;
        }
        if self.0.capacity() == 0 {
            self.0.reserve_exact(NEEDS_MAX);
        }
        debug_assert!(self.0.len() < NEEDS_MAX, "a full buffer is reported at once");
        self.0.push(Need { volume, range, lines });
        self.0.len() >= NEEDS_MAX
    }

    /// The needs, in slices of one volume.
    pub(crate) fn by_volume(&self) -> impl Iterator<Item = &[Need]> {
        self.0.chunk_by(|a, b| a.volume == b.volume)
    }

    /// Removes all needs.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = LINE_BYTES;

    #[test]
    fn needs_are_collected_by_volume_and_adjacent_ones_joined() {
        let mut needs = PendingNeeds::default();
        let mut add = |volume, line: u64, lines: u32| {
            let range = ByteRange::new(line * LINE, u64::from(lines) * LINE);
            needs.add(VolumeId(volume), range, lines)
        };
        assert!(!add(1, 10, 1));
        assert!(!add(1, 11, 2));
        assert!(!add(2, 13, 1), "of another volume");
        assert!(!add(2, 20, 1));
        let of = |slice: &[Need]| {
            slice.iter().map(|need| (need.range.offset / LINE, need.lines)).collect::<Vec<_>>()
        };
        let all: Vec<_> = needs.by_volume().map(of).collect();
        assert_eq!(all, [vec![(10, 3)], vec![(13, 1), (20, 1)]]);
        needs.clear();
        assert_eq!(needs.by_volume().count(), 0);
    }

    #[test]
    fn a_full_buffer_is_reported() {
        let mut needs = PendingNeeds::default();
        let fills = |needs: &mut PendingNeeds| {
            let range = |line: u64| ByteRange::new(line * 2 * LINE, LINE);
            (1..).find(|&line| needs.add(VolumeId(0), range(line), 1)).unwrap()
        };
        assert_eq!(fills(&mut needs), NEEDS_MAX as u64);
        let capacity = needs.0.capacity();
        needs.clear();
        assert_eq!(fills(&mut needs), NEEDS_MAX as u64);
        assert_eq!(needs.0.capacity(), capacity, "nothing is allocated again");
    }
}
