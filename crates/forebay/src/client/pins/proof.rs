//! The proof that a file is in a volume: its data is read from the file and, over NBD, from its
//! place in the volume, and compared.
//!
//! This verifies the device, the start of the partition, and the extents that the file system has
//! reported. A block that differs may have been written meanwhile, so the caller maps the file
//! again, with its data written to the device, before it gives up.

use super::map::Piece;
use anyhow::anyhow;
use forebay_backend::{Blocking, NbdAddress, NbdBackend, NbdUrl, OpenOptions};
use forebay_config::Listen;
use forebay_types::SECTOR_BYTES;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The number of places that are compared, and the most bytes at each.
const SAMPLES: usize = 16;
const SAMPLE_BYTES: u64 = 4096;

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Some samples are equal, and none differs.
    Same,
    /// A sample differs, and the file had the same data before and after.
    Differs,
    /// No sample proves anything: each is a block of equal bytes, or was changed meanwhile.
    Nothing,
}

/// Opens a volume at the first of these listeners that accepts a connection without TLS.
///
/// # Errors
/// The error of the last listener.
pub(super) fn open_volume(listeners: &[String], name: &str) -> anyhow::Result<NbdBackend> {
    let mut failure = anyhow!("the server has no listener");
    for listener in listeners {
        let address = match listener.parse() {
            Ok(Listen::Unix { path, .. }) => NbdAddress::Unix { path },
            Ok(Listen::Tcp { host, port }) => NbdAddress::Tcp { host, port },
            Err(error) => {
                failure = error.into();
                continue;
            }
        };
        let export = name.to_owned();
        let url =
            NbdUrl { address, export, tls: None, reconnect_seconds: None, keeps_writes: false };
        let options =
            OpenOptions { read_only: true, reconnect_seconds: 0, ..OpenOptions::default() };
        match NbdBackend::open_export(url, listener, &options) {
            Ok(volume) => return Ok(volume),
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

/// The places to compare, spread over the pieces by their bytes, each inside one piece.
fn samples(pieces: &[Piece]) -> Vec<Piece> {
    let all: u64 = pieces.iter().map(|piece| piece.len).sum();
    let step = (all / SAMPLES as u64).max(SAMPLE_BYTES).next_multiple_of(SAMPLE_BYTES);
    let (mut found, mut next, mut before) = (Vec::new(), 0, 0);
    for piece in pieces {
        while next < before + piece.len {
            // A piece consists of sectors.
            let skip = (next - before) / SECTOR_BYTES * SECTOR_BYTES;
            found.push(Piece {
                file_offset: piece.file_offset + skip,
                volume_offset: piece.volume_offset + skip,
                len: (piece.len - skip).min(SAMPLE_BYTES),
            });
            next += step;
        }
        before += piece.len;
    }
    found
}

/// Compares a file with its places in a volume.
///
/// # Errors
/// The file or the volume cannot be read.
pub(super) fn compare(file: &File, pieces: &[Piece], volume: &NbdBackend) -> anyhow::Result<Proof> {
    let mut proof = Proof::Nothing;
    for sample in samples(pieces) {
        // The last block may end after the file.
        let before = read_file(file, &sample)?;
        if before.iter().all(|byte| *byte == before[0]) {
            continue;
        }
        let first = sample.volume_offset / SECTOR_BYTES * SECTOR_BYTES;
        let skip = (sample.volume_offset - first) as usize;
        let sectors = (skip + before.len()).next_multiple_of(SECTOR_BYTES as usize);
        let mut there = vec![0; sectors];
        Blocking::new(volume)
            .read(first, &mut there)
            .map_err(|error| anyhow!("cannot read {sectors} bytes at {first}: {error}"))?;
        if there[skip..skip + before.len()] == before {
            proof = Proof::Same;
        } else if read_file(file, &sample)? == before {
            return Ok(Proof::Differs);
        }
    }
    Ok(proof)
}

fn read_file(file: &File, sample: &Piece) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; sample.len as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], sample.file_offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(anyhow::Error::new(error).context("cannot read the file")),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(file_offset: u64, volume_offset: u64, len: u64) -> Piece {
        Piece { file_offset, volume_offset, len }
    }

    #[test]
    fn samples_are_spread_over_all_pieces_and_stay_inside_them() {
        assert_eq!(samples(&[]), []);
        assert_eq!(samples(&[piece(0, 512, 1024)]), [piece(0, 512, 1024)]);
        let small: Vec<_> = (0..3).map(|at| piece(at << 13, at << 20, 4096)).collect();
        assert_eq!(samples(&small), small);
        let pieces = [piece(0, 1 << 30, 1 << 20), piece(1 << 21, 1 << 31, 3 << 20)];
        let found = samples(&pieces);
        assert_eq!(found.len(), SAMPLES);
        assert_eq!(found[4], piece(1 << 21, 1 << 31, 4096));
        for sample in found {
            let is_inside = |piece: &Piece| {
                let skip = sample.file_offset.checked_sub(piece.file_offset);
                skip.is_some_and(|skip| {
                    skip + sample.len <= piece.len
                        && sample.volume_offset == piece.volume_offset + skip
                })
            };
            assert!(pieces.iter().any(is_inside), "{sample:?}");
        }
    }

    #[test]
    fn a_sample_ends_with_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, [1, 2, 3]).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(read_file(&file, &piece(1, 0, 4096)).unwrap(), [2, 3]);
        assert!(read_file(&file, &piece(4096, 0, 4096)).unwrap().is_empty());
    }
}
