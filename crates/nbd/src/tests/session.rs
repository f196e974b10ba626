//! The record of a session: what is continued, and what is refused.

use super::terms;
use crate::{
    ExportInfo, NbdCommand, Negotiated, Parse, SESSION_INPUT_BYTES_MAX, SessionError,
    SessionRecord, proto::export_flag,
};
use forebay_types::VolumeId;
use proptest::prelude::*;

const IDENTITY: [u8; 32] = [7; 32];

fn record(structured: bool, extended: bool, input: &[u8]) -> SessionRecord {
    let terms = Negotiated { export: VolumeId(0), ..terms(structured, extended) };
    SessionRecord {
        export: "x".into(),
        identity: IDENTITY,
        terms,
        client: 5,
        age_ms: 1234,
        done_bytes: [1 << 40, 3],
        input: input.to_vec(),
    }
}

fn export() -> ExportInfo {
    let mut export = ExportInfo::new(VolumeId(9), "x", 1 << 20);
    (export.can_trim, export.can_fast_zero) = (true, true);
    export
}

fn encoded(record: &SessionRecord) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

#[test]
fn a_session_continues_with_the_terms_of_its_handshake() {
    for (structured, extended) in [(false, false), (true, false), (true, true)] {
        let record = record(structured, extended, b"half a header");
        let found = SessionRecord::decode(&encoded(&record)).unwrap();
        assert_eq!(found, record);
        let expected = Negotiated { export: VolumeId(9), ..terms(structured, extended) };
        assert_eq!(found.terms_on(&export(), &IDENTITY), Ok(expected));
        // Larger and seeking more slowly than before, which breaks no promise.
        let grown = ExportInfo { size_bytes: 1 << 21, rotational: true, ..export() };
        assert_eq!(found.terms_on(&grown, &IDENTITY), Ok(expected));
    }
}

#[test]
fn an_export_that_has_lost_something_ends_the_session() {
    let record = record(true, false, b"");
    assert_eq!(
        record.terms_on(&ExportInfo { name: "y".into(), ..export() }, &IDENTITY),
        Err(SessionError::OtherDisk)
    );
    assert_eq!(record.terms_on(&export(), &[8; 32]), Err(SessionError::OtherDisk));
    assert_eq!(
        record.terms_on(&ExportInfo { size_bytes: 1 << 19, ..export() }, &IDENTITY),
        Err(SessionError::Smaller)
    );
    assert_eq!(
        record.terms_on(&ExportInfo { read_only: true, ..export() }, &IDENTITY),
        Err(SessionError::Lost)
    );
    assert_eq!(
        record.terms_on(&ExportInfo { can_trim: false, ..export() }, &IDENTITY),
        Err(SessionError::Lost)
    );
    assert_eq!(
        record.terms_on(&ExportInfo { can_fast_zero: false, ..export() }, &IDENTITY),
        Err(SessionError::Lost)
    );
    assert_eq!(
        record.terms_on(&ExportInfo { block_min: 4096, ..export() }, &IDENTITY),
        Err(SessionError::Lost)
    );
    assert_eq!(
        record.terms_on(&ExportInfo { payload_max: 1 << 20, ..export() }, &IDENTITY),
        Err(SessionError::Lost)
    );
    assert_eq!(
        record.terms_on(&ExportInfo { tls_only: true, ..export() }, &IDENTITY),
        Err(SessionError::TlsOnly)
    );
}

#[test]
fn a_read_only_session_continues_on_a_volume_that_has_become_writable() {
    let read_only = ExportInfo { read_only: true, ..export() };
    let terms = Negotiated { export: VolumeId(0), ..Negotiated::new(&read_only) };
    let record = SessionRecord { terms, ..record(false, false, b"") };
    let found = record.terms_on(&export(), &IDENTITY).unwrap();
    assert!(found.is_read_only());
}

#[test]
fn another_version_is_named_and_damage_is_found() {
    let bytes = encoded(&record(true, true, b"input"));
    let mut newer = bytes.clone();
    newer[5] += 1;
    assert_eq!(SessionRecord::decode(&newer), Err(SessionError::Version(2)));
    for at in (0..bytes.len()).filter(|at| !(4..6).contains(at)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert_eq!(SessionRecord::decode(&damaged), Err(SessionError::Damaged), "byte {at}");
        assert_eq!(SessionRecord::decode(&bytes[..at]), Err(SessionError::Damaged), "{at} bytes");
    }
    let more = [&bytes[..], b"x"].concat();
    assert_eq!(SessionRecord::decode(&more), Err(SessionError::Damaged));
}

/// Sums the bytes anew, as a program would that writes wrong records.
fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.len() - 8;
    let sum = super::super::session::checksum(&bytes[..at]);
    bytes[at..].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn refused(record: SessionRecord) {
    let found = SessionRecord::decode(&encoded(&record));
    assert_eq!(found, Err(SessionError::Invalid), "{record:?}");
}

#[test]
fn records_that_contradict_themselves_are_refused() {
    let good = record(true, true, b"");
    let terms = good.terms;
    refused(SessionRecord { terms: Negotiated { structured: false, ..terms }, ..good.clone() });
    refused(SessionRecord { terms: Negotiated { block_min: 0, ..terms }, ..good.clone() });
    refused(SessionRecord { terms: Negotiated { block_min: 513, ..terms }, ..good.clone() });
    refused(SessionRecord { terms: Negotiated { flags: 0, ..terms }, ..good.clone() });
    refused(SessionRecord { client: 0, ..good.clone() });
    let simple = record(false, false, b"");
    let terms = Negotiated { flags: simple.terms.flags | export_flag::SEND_DF, ..simple.terms };
    refused(SessionRecord { terms, ..simple });
    refused(SessionRecord { export: "a\0b".into(), ..good.clone() });
}

proptest! {
    #[test]
    fn any_session_is_read_as_it_was_written(
        input in prop::collection::vec(any::<u8>(), 0..300),
        name in "[a-z0-9é]{1,40}",
        numbers in any::<[u64; 4]>(),
    ) {
        let [client, age_ms, read, written] = numbers;
        let client = client.max(1);
        let done_bytes = [read, written];
        let record = SessionRecord {
            export: name, client, age_ms, done_bytes, ..record(true, false, &input)
        };
        prop_assert_eq!(SessionRecord::decode(&encoded(&record)), Ok(record));
    }

    /// Whatever a record says, and although its sum is right: no panic, and no request that is not
    /// inside the export.
    #[test]
    fn a_hostile_record_harms_nothing(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
        request in any::<[u8; 28]>(),
    ) {
        let mut bytes = encoded(&record(true, false, b"some input"));
        for (at, value) in changes {
            let at = at.index(bytes.len() - 10) + 10;
            bytes[at] = value;
        }
        if cuts {
            bytes.truncate(8 + cut.index(bytes.len() - 8));
        }
        if let Ok(found) = SessionRecord::decode(&resealed(bytes))
            && let Ok(terms) = found.terms_on(&export(), &IDENTITY)
        {
            prop_assert!(found.input.len() <= SESSION_INPUT_BYTES_MAX);
            let mut wire = request;
            wire[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
            wire[4..8].copy_from_slice(&[0, 0, 0, request[7] % 8]);
            if let Parse::Request { request, .. } = terms.parse(&wire)
                && request.error.is_none()
                && request.command != NbdCommand::Disconnect
            {
                prop_assert!(request.range().fits(export().size_bytes));
            }
        }
    }
}
