//! What a block may contain: the history of one block of a volume, as the clients of all its owners
//! have seen it.
//!
//! Each block has one writer, which waits for each answer. So each of its sectors is linearizable
//! if a read returns the last write that was acknowledged, or a later one whose fate is not known;
//! and once a client of the present owner has read the sector, the fate of all is known. Sectors
//! are the unit because a write that is interrupted may have reached some of them.

use crate::model::stamp::{self, SECTOR_BYTES, SectorContent};
use anyhow::{Context, Result, ensure};

/// The unit of reads and writes, in bytes.
pub const BLOCK_BYTES: usize = 4096;
const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

/// The generation of each sector of a block.
pub type Generations = [u32; SECTORS];

/// The history of one block.
#[derive(Clone, Debug, Default)]
pub struct BlockRegister {
    /// For each sector the last generation that was acknowledged, or read; 0 at the start.
    known: Generations,
    /// Later ones, whose requests were not answered.
    unknown: Vec<u32>,
    /// The last generation that was written.
    last: u32,
    /// How [`Self::known`] is known, for messages.
    how: String,
}

impl BlockRegister {
    /// Begins a write. Returns its generation.
    pub const fn begin(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// The write was acknowledged.
    pub fn acknowledge(&mut self, how: String) {
        self.how = how;
        self.known = [self.last; SECTORS];
        self.unknown.clear();
    }

    /// The write was not answered, or with an error.
    pub fn leave_open(&mut self) {
        self.unknown.push(self.last);
    }

    /// Whether a read may return these generations.
    pub fn allows(&self, found: &Generations) -> bool {
        found
            .iter()
            .zip(&self.known)
            .all(|(found, known)| found == known || self.unknown.contains(found))
    }

    /// Takes what a client of the present owner has read.
    ///
    /// # Errors
    /// If an acknowledged write is lost, or one that was not there before has appeared.
    pub fn read(&mut self, found: &Generations, how: String) -> Result<()> {
        ensure!(
            self.allows(found),
            "generations {found:?} instead of {:?}, or of those that may be there: {:?}; {how}, \
             after {}",
            self.known,
            self.unknown,
            self.how
        );
        self.how = how;
        self.known = *found;
        self.unknown.clear();
        Ok(())
    }

    /// What is there for certain; `None` if writes are open.
    pub fn certain(&self) -> Option<Generations> {
        self.unknown.is_empty().then_some(self.known)
    }
}

fn content(generation: u32) -> SectorContent {
    if generation == 0 { SectorContent::Zero } else { SectorContent::Stamp(generation) }
}

/// Fills `bytes`, which are one block, with a generation.
pub fn fill(bytes: &mut [u8], seed: u32, block: u32, generation: u32) {
    for (sector, bytes) in (block * SECTORS as u32..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
        stamp::fill(bytes, seed, sector, content(generation));
    }
}

/// The generations in `bytes`, which are one block.
///
/// # Errors
/// If a sector is not one generation of this block.
pub fn generations(bytes: &[u8], seed: u32, block: u32) -> Result<Generations> {
    let mut found = [0; SECTORS];
    let sectors = (block * SECTORS as u32..).zip(bytes.chunks_exact(SECTOR_BYTES));
    for ((sector, bytes), found) in sectors.zip(&mut found) {
        let first = bytes.first_chunk().context("a short sector")?;
        *found = u64::from_le_bytes(*first) as u32;
        ensure!(
            stamp::matches(bytes, seed, sector, content(*found)),
            "torn, or of another place: {}",
            stamp::describe(bytes, seed)
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_write_and_one_that_appears_later_are_found() {
        let mut block = BlockRegister::default();
        let all = |generation| [generation; SECTORS];
        assert_eq!(block.begin(), 1);
        block.acknowledge(String::new());
        assert_eq!(block.begin(), 2);
        block.leave_open();
        assert!(block.allows(&all(1)) && block.allows(&all(2)) && !block.allows(&all(0)));
        assert_eq!(block.certain(), None);
        let mut seen = block.clone();
        seen.read(&all(2), String::new()).unwrap();
        assert!(seen.read(&all(1), String::new()).is_err(), "a write that was there is gone");
        let mut half = all(1);
        half[SECTORS / 2..].fill(2);
        let mut torn = block.clone();
        torn.read(&half, String::new()).unwrap();
        assert!(
            torn.read(&all(2), String::new()).is_err() && torn.read(&half, String::new()).is_ok(),
            "it stays as it is"
        );
        block.read(&all(1), String::new()).unwrap();
        assert!(
            block.read(&all(2), String::new()).is_err(),
            "a write that was not there has appeared"
        );
        assert!(block.read(&all(0), String::new()).is_err(), "an acknowledged write is lost");
        assert_eq!(block.certain(), Some(all(1)));
    }

    #[test]
    fn a_torn_sector_is_no_generation() {
        let mut bytes = vec![0; BLOCK_BYTES];
        assert_eq!(generations(&bytes, 1, 3).unwrap(), [0; SECTORS]);
        fill(&mut bytes, 1, 3, 7);
        assert_eq!(generations(&bytes, 1, 3).unwrap(), [7; SECTORS]);
        assert!(generations(&bytes, 1, 4).is_err());
        bytes[BLOCK_BYTES - 1] ^= 1;
        assert!(generations(&bytes, 1, 3).is_err());
    }
}
