//! The expected content of a volume: every acknowledged write, and nothing else.

use forebay_types::SECTOR_BYTES;

const SECTOR: usize = SECTOR_BYTES as usize;

/// The known content of a volume.
pub struct Oracle {
    bytes: Vec<u8>,
    /// Whether each sector is known; a trimmed sector is unknown until it is written again.
    known: Vec<bool>,
}

impl Oracle {
    /// A volume of zeroes.
    pub fn new(size_bytes: u64) -> Self {
        let size = size_bytes as usize;
        Self { bytes: vec![0; size], known: vec![true; size / SECTOR] }
    }

    /// Applies a write.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let at = offset as usize;
        self.bytes[at..at + data.len()].copy_from_slice(data);
        self.mark(offset, data.len() as u64, true);
    }

    /// Applies a write of zeroes.
    pub fn zero(&mut self, offset: u64, len: u64) {
        self.bytes[offset as usize..(offset + len) as usize].fill(0);
        self.mark(offset, len, true);
    }

    /// Applies a trim: the content is unknown.
    pub fn trim(&mut self, offset: u64, len: u64) {
        self.mark(offset, len, false);
    }

    fn mark(&mut self, offset: u64, len: u64, known: bool) {
        self.known[offset as usize / SECTOR..(offset + len) as usize / SECTOR].fill(known);
    }

    /// Fails if `data`, read at `offset`, differs from the expected content.
    pub fn check(&self, offset: u64, data: &[u8], source: &str) {
        let at = offset as usize;
        if data == &self.bytes[at..at + data.len()] {
            return;
        }
        for (index, sector) in data.chunks(SECTOR).enumerate() {
            let number = at / SECTOR + index;
            let wanted = &self.bytes[number * SECTOR..][..SECTOR];
            assert!(
                sector == wanted || !self.known[number],
                "{source}: sector {number} is wrong in a read of {}+{}; first bytes {:?}, not {:?}",
                offset,
                data.len(),
                &sector[..8],
                &wanted[..8],
            );
        }
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}
