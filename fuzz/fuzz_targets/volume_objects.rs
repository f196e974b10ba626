//! The objects of a volume on S3: manifest, parts of the map, and data.
//!
//! The first byte says which one it is, and whether to make the checksum right, so that the checks
//! behind it are reached. Properties: an accepted manifest is unchanged by encoding it again; runs
//! are inside the volume, and have as many sectors as the header says.

#![no_main]

use forebay_objects::checkpoint::{CheckpointReader, part_ref};
use forebay_objects::{HEADER_BYTES, Manifest, ObjectHeader, frames};
use libfuzzer_sys::fuzz_target;

const SECTORS: u64 = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let [choice, bytes @ ..] = input else { return };
    let mut bytes = bytes.to_vec();
    let is_sealed = choice & 1 != 0 && bytes.len() >= HEADER_BYTES as usize;
    match choice >> 1 & 3 {
        0 => {
            if is_sealed {
                let end = bytes.len();
                seal(&mut bytes[..end], b"FBmf");
            }
            if let Ok(manifest) = Manifest::decode(&bytes) {
                assert_eq!(manifest.encode(), bytes);
            }
        }
        1 => {
            if is_sealed {
                let end = bytes.len();
                seal(&mut bytes[..end], b"FBcp");
            }
            let mut reader = CheckpointReader::new([0; 16], 0, 0, SECTORS);
            if reader.read(&bytes, part_ref(&bytes)).is_ok()
                && let Ok((map, table)) = reader.end()
            {
                let mut data = 0;
                for piece in map.pieces(0, SECTORS) {
                    data += if piece.place.is_some() { piece.len } else { 0 };
                }
                assert_eq!(data, table.sectors().1);
            }
        }
        _ => {
            if is_sealed {
                seal(&mut bytes[..HEADER_BYTES as usize], b"FBob");
            }
            let Ok(header) = ObjectHeader::decode(&bytes) else { return };
            let table = &bytes[HEADER_BYTES as usize..];
            if let Ok(runs) = header.decode_runs(table, SECTORS) {
                let sectors: u64 = runs.iter().map(|run| run.data_sectors()).sum();
                assert_eq!(sectors, u64::from(header.sectors));
                assert!(runs.iter().all(|run| run.start + run.len <= SECTORS));
                let data = &bytes[(header.data_offset() as usize).min(bytes.len())..];
                let _ = frames::verify(data, header.name, 0);
            }
        }
    }
});

/// Makes kind, version and checksum right.
fn seal(bytes: &mut [u8], magic: &[u8; 4]) {
    bytes[..4].copy_from_slice(magic);
    bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
    let end = bytes.len() - 4;
    let sum = part_ref(&bytes[..end]).checksum;
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
}
