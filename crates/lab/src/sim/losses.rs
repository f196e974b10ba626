//! Sectors whose only current content was damaged in the pool.
//!
//! Requests that need them fail until they are rewritten or restored from the journal.

use forebay_types::{ByteRange, LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The lost sectors of a volume, with the moment of the loss.
pub(crate) type Lost = BTreeMap<u64, u32>;

#[derive(Clone, Default)]
struct VolumeLosses {
    lost: Lost,
    /// Lost sectors that the journal no longer has either.
    unrecoverable: BTreeSet<u64>,
}

/// The losses of all volumes.
pub(crate) struct Losses(Vec<VolumeLosses>);

impl Losses {
    pub(crate) fn new(volumes: usize) -> Self {
        Self(vec![VolumeLosses::default(); volumes])
    }

    fn at(&self, volume: VolumeId) -> &VolumeLosses {
        &self.0[usize::from(volume.0)]
    }

    fn at_mut(&mut self, volume: VolumeId) -> &mut VolumeLosses {
        &mut self.0[usize::from(volume.0)]
    }

    pub(crate) fn add(&mut self, volume: VolumeId, sector: u64, moment: u32) {
        self.at_mut(volume).lost.insert(sector, moment);
    }

    /// Ends the losses in a range, except those after `submitted`. Returns their sectors.
    pub(crate) fn end(&mut self, volume: VolumeId, range: ByteRange, submitted: u32) -> Vec<u64> {
        let VolumeLosses { lost, unrecoverable } = self.at_mut(volume);
        let found = lost.range(sectors_in(Some(range))).filter(|(_, at)| **at <= submitted);
        let found: Vec<u64> = found.map(|(&sector, _)| sector).collect();
        for sector in &found {
            lost.remove(sector);
            unrecoverable.remove(sector);
        }
        found
    }

    /// Ends all losses: the pool of a new process is empty.
    pub(crate) fn end_all(&mut self) {
        self.0.fill(VolumeLosses::default());
    }

    /// Ends all losses of a volume, and returns them.
    pub(crate) fn take(&mut self, volume: VolumeId) -> Lost {
        std::mem::take(self.at_mut(volume)).lost
    }

    /// Replaces the losses of a volume. Returns a sector that was not lost before, if there is one.
    pub(crate) fn replace(&mut self, volume: VolumeId, lost: Lost) -> Option<u64> {
        let losses = self.at_mut(volume);
        let before = std::mem::replace(&mut losses.lost, lost);
        losses.unrecoverable.retain(|sector| losses.lost.contains_key(sector));
        self.of(volume).keys().find(|sector| !before.contains_key(sector)).copied()
    }

    pub(crate) fn of(&self, volume: VolumeId) -> &Lost {
        &self.at(volume).lost
    }

    pub(crate) fn contains(&self, volume: VolumeId, sector: u64) -> bool {
        self.at(volume).lost.contains_key(&sector)
    }

    /// Whether sectors of the range are lost; of the whole volume if there is no range.
    pub(crate) fn any_in(&self, volume: VolumeId, range: Option<ByteRange>) -> bool {
        self.at(volume).lost.range(sectors_in(range)).next().is_some()
    }

    pub(crate) fn any(&self) -> bool {
        self.0.iter().any(|volume| !volume.lost.is_empty())
    }

    /// Whether a volume has lost sectors that no journal can restore.
    pub(crate) fn any_unrecoverable(&self, volume: VolumeId) -> bool {
        let VolumeLosses { lost, unrecoverable } = self.at(volume);
        unrecoverable.iter().any(|sector| lost.contains_key(sector))
    }

    pub(crate) fn is_unrecoverable(&self, volume: VolumeId, sector: u64) -> bool {
        self.at(volume).unrecoverable.contains(&sector)
    }

    /// Records that the journal of a volume no longer has the data that is lost in the pool.
    pub(crate) fn mark_unrecoverable(&mut self, volume: VolumeId) {
        let VolumeLosses { lost, unrecoverable } = self.at_mut(volume);
        unrecoverable.extend(lost.keys());
    }

    pub(crate) fn clear_unrecoverable(&mut self, volume: VolumeId) {
        self.at_mut(volume).unrecoverable.clear();
    }

    /// The lines with losses of a volume of `size` bytes.
    pub(crate) fn lines(&self, volume: VolumeId, size: u64) -> Vec<ByteRange> {
        let lines = self.of(volume).keys().map(|sector| sector * SECTOR_BYTES / LINE_BYTES);
        let lines: BTreeSet<u64> = lines.collect();
        let line =
            |line| ByteRange::new(line * LINE_BYTES, LINE_BYTES.min(size - line * LINE_BYTES));
        lines.into_iter().map(line).collect()
    }
}

fn sectors_in(range: Option<ByteRange>) -> Range<u64> {
    range.map_or(0..u64::MAX, |range| range.offset / SECTOR_BYTES..range.end() / SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(1);

    fn sectors(first: u64, count: u64) -> ByteRange {
        ByteRange::new(first * SECTOR_BYTES, count * SECTOR_BYTES)
    }

    #[test]
    fn a_rewrite_ends_only_the_losses_before_it() {
        let mut losses = Losses::new(2);
        losses.add(VOLUME, 8, 10);
        losses.add(VOLUME, 9, 20);
        losses.add(VOLUME, 17, 10);
        assert_eq!(losses.end(VOLUME, sectors(0, 16), 15), [8]);
        assert!(!losses.any_in(VOLUME, Some(sectors(0, 9))));
        assert!(losses.any_in(VOLUME, Some(sectors(9, 1))));
        assert_eq!(losses.lines(VOLUME, 18 * SECTOR_BYTES), [sectors(8, 8), sectors(16, 2)]);
        assert!(!losses.any_in(VolumeId(0), None));
    }

    #[test]
    fn only_losses_from_before_a_new_journal_are_unrecoverable() {
        let mut losses = Losses::new(2);
        losses.add(VOLUME, 8, 10);
        losses.mark_unrecoverable(VOLUME);
        losses.add(VOLUME, 9, 20);
        assert!(losses.is_unrecoverable(VOLUME, 8) && !losses.is_unrecoverable(VOLUME, 9));
        assert!(losses.any_unrecoverable(VOLUME));
        assert_eq!(losses.end(VOLUME, sectors(8, 1), 30), [8]);
        assert!(losses.any() && !losses.any_unrecoverable(VOLUME));
    }

    #[test]
    fn a_new_loss_is_recoverable_though_an_ended_one_of_the_sector_was_not() {
        let end: [fn(&mut Losses); 3] = [
            |losses| losses.end_all(),
            |losses| drop(losses.take(VOLUME)),
            |losses| assert_eq!(losses.replace(VOLUME, Lost::new()), None),
        ];
        for end in end {
            let mut losses = Losses::new(2);
            losses.add(VOLUME, 8, 10);
            losses.mark_unrecoverable(VOLUME);
            end(&mut losses);
            losses.add(VOLUME, 8, 20);
            assert!(!losses.is_unrecoverable(VOLUME, 8));
        }
    }

    #[test]
    fn a_table_may_not_record_new_losses() {
        let mut losses = Losses::new(2);
        losses.add(VOLUME, 8, 10);
        losses.add(VOLUME, 9, 10);
        assert_eq!(losses.replace(VOLUME, Lost::from([(9, 30)])), None);
        assert_eq!(losses.replace(VOLUME, Lost::from([(8, 40), (9, 40)])), Some(8));
    }
}
