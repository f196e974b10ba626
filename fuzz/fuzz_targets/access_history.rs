//! The access history of a volume.
//!
//! The first byte says whether to make header and checksum right, so that the checks behind them
//! are reached. Properties: an accepted history is unchanged by encoding it again, apart from
//! reserved fields.

#![no_main]

use forebay_format::{HistoryFile, checksum};
use libfuzzer_sys::fuzz_target;

const HEADER_BYTES: usize = 80;
const SLOT_BYTES: usize = 16;
const REGION_BYTES: usize = 20;
const CHECKSUM_BYTES: usize = 4;
const MAGIC: [u8; 8] = *b"FOREBAYH";

fuzz_target!(|input: &[u8]| {
    let [choice, bytes @ ..] = input else { return };
    let mut bytes = bytes.to_vec();
    if choice & 1 != 0 && bytes.len() >= HEADER_BYTES + CHECKSUM_BYTES {
        let body = bytes.len() - CHECKSUM_BYTES;
        let slots = usize::from(choice >> 1).min((body - HEADER_BYTES) / SLOT_BYTES);
        let regions = (body - HEADER_BYTES - slots * SLOT_BYTES) / REGION_BYTES;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
        bytes[16..20].copy_from_slice(&(slots as u32).to_le_bytes());
        bytes[24..32].copy_from_slice(&(regions as u64).to_le_bytes());
        let sum = checksum(u64::from_le_bytes(MAGIC), &bytes[..body]);
        bytes[body..].copy_from_slice(&sum.to_le_bytes());
    }
    match HistoryFile::decode(&bytes) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(history) => assert_eq!(HistoryFile::decode(&history.encode()), Ok(history)),
    }
});
