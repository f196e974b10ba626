//! Recorded client streams. `FOREBAY_NBD_DATA` names a directory outside the repository with
//! `own-seeds` and `nbdkit-seeds`; without it these tests print a note and pass.

use super::{
    exports,
    fragments::{read_requests, serve},
};
use crate::{Handshake, HandshakeConfig, HandshakeStep, Parse, Tls};
use std::path::Path;

/// The seeds of one directory; none if `FOREBAY_NBD_DATA` is unset.
fn seeds(folder: &str) -> Vec<(String, Vec<u8>)> {
    let Some(root) = std::env::var_os("FOREBAY_NBD_DATA") else {
        eprintln!("skipped: FOREBAY_NBD_DATA names no folder of seeds");
        return Vec::new();
    };
    let folder = Path::new(&root).join(folder);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut seeds: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.display().to_string(), std::fs::read(&path).unwrap())
        })
        .collect();
    seeds.sort();
    seeds
}

#[test]
fn seeds_are_independent_of_fragmentation() {
    for (name, input) in [seeds("own-seeds"), seeds("nbdkit-seeds")].concat() {
        for tls in [Tls::Off, Tls::Selective] {
            let whole = serve(tls, &input, &[usize::MAX]);
            for len in [1, 3, 16, 28, 29] {
                let pieced = serve(tls, &input, &[len]);
                if matches!(whole.1, HandshakeStep::Close(crate::CloseReason::PlainText)) {
                    assert_eq!(pieced.1, whole.1, "{name}");
                } else {
                    assert_eq!(pieced, whole, "{name}");
                }
            }
        }
    }
}

#[test]
fn seed_requests_are_independent_of_fragmentation() {
    let (mut entered, mut requests) = (0, 0);
    let all = [seeds("own-seeds"), seeds("nbdkit-seeds")].concat();
    for (name, input) in &all {
        let mut exports = exports();
        exports.0.truncate(1);
        let mut handshake = Handshake::new(HandshakeConfig { tls: Tls::Off });
        let (taken, step) = handshake.advance(input, &exports, &mut Vec::new());
        let HandshakeStep::Enter(terms) = step else { continue };
        entered += 1;
        let whole = read_requests(&terms, &input[taken..], &[usize::MAX]);
        assert_eq!(read_requests(&terms, &input[taken..], &[5]), whole, "{name}");
        requests += whole.iter().filter(|parse| matches!(parse, Parse::Request { .. })).count();
    }
    eprintln!("{} seeds, {entered} entered an export, {requests} requests", all.len());
    assert!(all.is_empty() || entered * 4 > all.len(), "{entered} of {}", all.len());
}
