//! The content of one sector: a function of its number, its generation and the run's seed.
//!
//! The first word contains sector and generation in plain form, to explain a wrong sector. All
//! other words depend on both and on their position, so a torn sector matches neither write.

use std::fmt;

/// The unit of the model in bytes: the smallest NBD block of a disk.
pub const SECTOR_BYTES: usize = 512;

/// The content of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorContent {
    Zero,
    /// The stamp of this generation. Generation 0 is on the disk before the server starts.
    Stamp(u32),
    /// Anything at all.
    Anything,
}

impl fmt::Display for SectorContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => write!(f, "zeroes"),
            Self::Anything => write!(f, "anything"),
            Self::Stamp(0) => write!(f, "the content from before the start"),
            Self::Stamp(generation) => write!(f, "generation {generation}"),
        }
    }
}

/// Writes the content of `sector` into `bytes`, which are one sector.
pub fn fill(bytes: &mut [u8], seed: u32, sector: u32, content: SectorContent) {
    let SectorContent::Stamp(generation) = content else {
        assert!(content == SectorContent::Zero, "anything is not written");
        return bytes.fill(0);
    };
    let first = u64::from(sector) << 32 | u64::from(generation);
    let key = mix(first, seed);
    for (index, word) in (0..).zip(bytes.chunks_exact_mut(8)) {
        let value = if index == 0 { first } else { word_at(key, index) };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Whether `bytes`, which are one sector, are the content of `sector`.
pub fn matches(bytes: &[u8], seed: u32, sector: u32, content: SectorContent) -> bool {
    let generation = match content {
        SectorContent::Stamp(generation) => generation,
        SectorContent::Zero => return is_zero(bytes),
        SectorContent::Anything => return true,
    };
    let first = u64::from(sector) << 32 | u64::from(generation);
    let key = mix(first, seed);
    (0..).zip(bytes.chunks_exact(8)).all(|(index, word)| {
        word == if index == 0 { first } else { word_at(key, index) }.to_le_bytes()
    })
}

/// Whether each word of `bytes`, which are one sector, is that of one of the contents of `sector`.
pub fn is_mixed(bytes: &[u8], seed: u32, sector: u32, contents: &[SectorContent]) -> bool {
    let mut one = [0; SECTOR_BYTES];
    let mut explained = [false; SECTOR_BYTES / 8];
    for &content in contents {
        if content == SectorContent::Anything {
            return true;
        }
        fill(&mut one, seed, sector, content);
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            explained[index] |= *word == one[index * 8..index * 8 + 8];
        }
    }
    explained.iter().all(|explained| *explained)
}

/// Describes `bytes`, which are one sector, for messages.
pub fn describe(bytes: &[u8], seed: u32) -> String {
    if is_zero(bytes) {
        return "zeroes".to_owned();
    }
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    let first = u64::from_le_bytes(first);
    let (sector, generation) = ((first >> 32) as u32, first as u32);
    let whole = matches(bytes, seed, sector, SectorContent::Stamp(generation));
    let name = SectorContent::Stamp(generation);
    match whole {
        true => format!("{name} of sector {sector}"),
        false => format!("no whole stamp; its first word says {name} of sector {sector}"),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn mix(first: u64, seed: u32) -> u64 {
    let mixed = (first ^ u64::from(seed) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn word_at(key: u64, index: u64) -> u64 {
    (key ^ index).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_of_another_place_time_or_run_or_half_of_one_does_not_match() {
        let mut bytes = [0; SECTOR_BYTES];
        fill(&mut bytes, 1, 7, SectorContent::Stamp(3));
        assert!(matches(&bytes, 1, 7, SectorContent::Stamp(3)));
        assert!(!matches(&bytes, 1, 8, SectorContent::Stamp(3)));
        assert!(!matches(&bytes, 1, 7, SectorContent::Stamp(2)));
        assert!(!matches(&bytes, 2, 7, SectorContent::Stamp(3)));
        assert!(!matches(&bytes, 1, 7, SectorContent::Zero));
        assert_eq!(describe(&bytes, 1), "generation 3 of sector 7");
        let mut other = [0; SECTOR_BYTES];
        fill(&mut other, 1, 7, SectorContent::Stamp(4));
        for at in (8..SECTOR_BYTES).step_by(8) {
            let mut torn = bytes;
            torn[at..].copy_from_slice(&other[at..]);
            assert!(!matches(&torn, 1, 7, SectorContent::Stamp(3)));
            assert!(!matches(&torn, 1, 7, SectorContent::Stamp(4)));
            assert!(describe(&torn, 1).starts_with("no whole stamp"));
            let [three, four] = [3, 4].map(SectorContent::Stamp);
            assert!(is_mixed(&torn, 1, 7, &[three, four]));
            assert!(!is_mixed(&torn, 1, 7, &[three, SectorContent::Zero]));
            assert!(!is_mixed(&torn, 1, 8, &[three, four]));
        }
        fill(&mut bytes, 1, 7, SectorContent::Zero);
        assert!(matches(&bytes, 1, 7, SectorContent::Zero));
        assert_eq!(describe(&bytes, 1), "zeroes");
    }
}
