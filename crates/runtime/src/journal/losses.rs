//! Sectors that were lost in memory: which searches of the log are due for them, and what the log
//! holds of them.

use super::Journal;
use crate::platform::locks::Lock;
use forebay_engine::LineKey;
use forebay_format::journal::{BLOCK_BYTES, Record};
use forebay_journal::{Extent, FoundRecord, Source};
use forebay_protect::StuckLine;
use forebay_types::{LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::collections::{BTreeMap, VecDeque};

/// The searches of one journal for lost sectors.
#[derive(Debug, Default)]
pub(crate) struct LossSearches {
    requests: Lock<Requests>,
    /// By a volume's number in the journal: how many losses its last complete search covered.
    /// Losses that an adopted pool contains are not counted, so a search may have covered zero.
    searched_losses: Lock<BTreeMap<u16, u64>>,
}

/// Volumes to search for. Each search reads the whole log, so one thread does them one by one.
#[derive(Debug, Default)]
struct Requests {
    /// The thread is running.
    is_running: bool,
    /// Volumes that wait for their search, with their numbers in the journal.
    waiting: VecDeque<(u16, VolumeId)>,
}

impl LossSearches {
    /// Requests a search for a volume. Returns whether the caller has to start the thread.
    pub(crate) fn request(&self, number: u16, volume: VolumeId) -> bool {
        let mut requests = self.requests.lock();
        if !requests.waiting.contains(&(number, volume)) {
            requests.waiting.push_back((number, volume));
        }
        !std::mem::replace(&mut requests.is_running, true)
    }

    /// The next volume to search for. `None` ends the thread.
    pub(crate) fn next(&self) -> Option<(u16, VolumeId)> {
        let mut requests = self.requests.lock();
        assert!(requests.is_running, "only the thread that was started takes requests");
        let next = requests.waiting.pop_front();
        requests.is_running = next.is_some();
        next
    }

    /// Whether the last complete search for the volume covered this many losses.
    pub(crate) fn has_searched(&self, number: u16, losses: u64) -> bool {
        self.searched_losses.lock().get(&number) == Some(&losses)
    }

    pub(crate) fn record_search(&self, number: u16, losses: u64) {
        self.searched_losses.lock().insert(number, losses);
    }

    /// The thread could not be started: the next request starts it.
    pub(crate) fn handle_no_thread(&self) {
        self.requests.lock().is_running = false;
    }

    /// Forgets a volume that leaves the journal: the next volume with its number counts its losses
    /// from zero.
    pub(super) fn forget(&self, number: u16) {
        self.requests.lock().waiting.retain(|(other, _)| *other != number);
        self.searched_losses.lock().remove(&number);
    }
}

/// Sectors of a line to be restored, and their bytes at their places.
pub(crate) struct LostContent {
    pub key: LineKey,
    /// A bit per sector.
    pub sectors: u8,
    pub bytes: Vec<u8>,
}

/// Reads the lost sectors of a line from the log; `None` if the log has none of them.
pub(crate) fn lost_content(
    journal: &Journal,
    line: StuckLine,
    image: &[Extent],
    records: &[FoundRecord],
) -> Option<LostContent> {
    let mut content =
        LostContent { key: line.key, sectors: 0, bytes: vec![0; LINE_BYTES as usize] };
    for sector in (0..8).filter(|sector| line.lost >> sector & 1 != 0) {
        let offset = line.key.offset() + sector * SECTOR_BYTES;
        let at = image.partition_point(|extent| extent.range.end() <= offset);
        let Some(extent) = image.get(at).filter(|extent| extent.range.offset <= offset) else {
            continue;
        };
        let to = (sector * SECTOR_BYTES) as usize;
        let to = &mut content.bytes[to..to + SECTOR_BYTES as usize];
        match extent.source {
            Source::Write { record, offset: from } => {
                let Some(bytes) = payload_of(journal, &records[record]) else { continue };
                let from = (from + offset - extent.range.offset) as usize;
                to.copy_from_slice(&bytes[from..from + SECTOR_BYTES as usize]);
            }
            Source::Zero { .. } => to.fill(0),
            Source::Discard => continue,
        }
        content.sectors |= 1 << sector;
    }
    (content.sectors != 0).then_some(content)
}

/// The payload of a record, from the first device that returns it intact.
fn payload_of(journal: &Journal, found: &FoundRecord) -> Option<Vec<u8>> {
    let Record { volume, range, checksum, .. } = found.record;
    let start = found.position / BLOCK_BYTES * BLOCK_BYTES;
    let from = (found.position - start) as usize;
    let len = (from as u64 + range.len).next_multiple_of(BLOCK_BYTES);
    (0..2).find_map(|device| {
        let bytes = journal.devices.read_on(device, start, len).ok()?;
        let payload = &bytes[from..from + range.len as usize];
        (Record::checksum_of(volume, range.offset, payload) == checksum).then(|| payload.to_vec())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_during_a_search_waits_for_its_end() {
        let regain = LossSearches::default();
        let (a, b) = ((7, VolumeId(0)), (8, VolumeId(1)));
        assert!(regain.request(a.0, a.1), "no thread is running");
        assert_eq!(regain.next(), Some(a));
        for (number, volume) in [b, a, b] {
            assert!(!regain.request(number, volume), "the thread is running");
        }
        assert_eq!((regain.next(), regain.next(), regain.next()), (Some(b), Some(a), None));
        assert!(regain.request(b.0, b.1), "the thread has ended");
        regain.forget(8);
        assert_eq!(regain.next(), None, "the volume has left the journal");
    }

    #[test]
    fn the_losses_of_a_volume_that_left_do_not_count_for_the_next_one_with_its_number() {
        let regain = LossSearches::default();
        regain.record_search(3, 1);
        assert!(regain.has_searched(3, 1) && !regain.has_searched(3, 2));
        regain.forget(3);
        assert!(!regain.has_searched(3, 1));
    }

    #[test]
    fn a_volume_without_counted_losses_is_searched_once() {
        let regain = LossSearches::default();
        assert!(!regain.has_searched(3, 0), "its lines in an adopted pool may be lost");
        regain.record_search(3, 0);
        assert!(regain.has_searched(3, 0));
    }
}
