//! The warm list of a volume.
//!
//! The first byte says whether to make header and checksum right, so that the checks behind them
//! are reached. Properties: an accepted list is unchanged by encoding it again, apart from reserved
//! fields, and its granules are in ascending order, not empty and inside the disk.

#![no_main]

use forebay_format::{WarmList, checksum};
use forebay_types::LINE_VALUE_MAX;
use libfuzzer_sys::fuzz_target;

const HEADER_BYTES: usize = 88;
const CHECKSUM_BYTES: usize = 4;
const MAGIC: [u8; 8] = *b"FOREBAYW";

fuzz_target!(|input: &[u8]| {
    let [choice, bytes @ ..] = input else { return };
    let mut bytes = bytes.to_vec();
    if choice & 1 != 0 && bytes.len() >= HEADER_BYTES + CHECKSUM_BYTES {
        let body = bytes.len() - CHECKSUM_BYTES;
        let granules = (body - HEADER_BYTES) as u64 / 12;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
        bytes[16..24].copy_from_slice(&granules.to_le_bytes());
        let sum = checksum(u64::from_le_bytes(MAGIC), &bytes[..body]);
        bytes[body..].copy_from_slice(&sum.to_le_bytes());
    }
    match WarmList::decode(&bytes) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(list) => {
            assert!(list.granules.is_sorted_by(|a, b| a.index < b.index));
            for granule in &list.granules {
                assert!(granule.lines != 0 && granule.range().offset < list.disk.size_bytes);
                let value_max = granule.line_count() * u32::from(LINE_VALUE_MAX);
                assert!(u32::from(granule.value) <= value_max);
            }
            assert_eq!(WarmList::decode(&list.encode()), Ok(list));
        }
    }
});
