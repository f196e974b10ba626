use super::*;
use proptest::prelude::*;

const JOURNAL: JournalId = JournalId(*b"a journal's name");

fn write(volume: u16, offset: u64, payload: &[u8], at: usize, len: usize) -> Record {
    let bytes = &payload[at..at + len];
    Record {
        kind: RecordKind::Write,
        volume,
        range: ByteRange::new(offset, len as u64),
        payload_offset: at as u32,
        checksum: Record::checksum_of(volume, offset, bytes),
    }
}

fn erase(kind: RecordKind, offset: u64, len: u64) -> Record {
    let range = ByteRange::new(offset, len);
    Record { kind, volume: 3, range, payload_offset: 0, checksum: 0 }
}

fn example() -> (Vec<u8>, BatchHeader, Vec<Record>) {
    let payload: Vec<u8> = (0..4096 + 512).map(|at| (at * 7 / 3) as u8).collect();
    let records = vec![
        write(3, 1 << 40, &payload, 0, 4096),
        erase(RecordKind::Zero { unmap: true }, 4096, 1 << 40),
        erase(RecordKind::Discard, 0, 512),
        erase(RecordKind::Forget, 512, 512),
        write(4, 512, &payload, 4096, 512),
    ];
    let mut buffer = vec![0xee; 3 * BLOCK_BYTES as usize];
    buffer[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(&payload);
    let mut header = BatchHeader::new(5, 77, 12, 8192, 0xabcd);
    header.payload_bytes = payload.len() as u32;
    header.first_record = 1000;
    let header = seal_batch(JOURNAL, header, &records, &mut buffer);
    (buffer, header, records)
}

fn read(bytes: &[u8]) -> Result<(BatchHeader, Vec<Record>), BatchInvalid> {
    let header = BatchHeader::decode(JOURNAL, 12, 8192, bytes)?;
    let mut records = Vec::new();
    check_batch(&header, bytes, &mut records)?;
    Ok((header, records))
}

#[test]
fn decodes_what_was_encoded() {
    let (buffer, header, records) = example();
    assert_eq!(header.len_bytes(), 2 * BLOCK_BYTES);
    assert_eq!(read(&buffer), Ok((header, records)));
}

#[test]
fn detects_every_flipped_bit() {
    let (buffer, header, records) = example();
    let end = HEADER_BYTES + header.payload_bytes as usize + records.len() * RECORD_BYTES;
    for at in 0..end {
        for bit in 0..8 {
            let mut damaged = buffer.clone();
            damaged[at] ^= 1 << bit;
            assert!(read(&damaged).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn damaged_payload_keeps_its_records() {
    let (mut buffer, header, records) = example();
    buffer[HEADER_BYTES + 4096 + 9] ^= 1;
    let mut found = Vec::new();
    assert_eq!(check_batch(&header, &buffer, &mut found), Err(BatchInvalid::Payload(4)));
    assert_eq!(found, records);
}

#[test]
fn rejects_a_batch_of_another_place_or_journal() {
    let (buffer, ..) = example();
    let misplaced = Err(BatchInvalid::Misplaced);
    assert_eq!(BatchHeader::decode(JOURNAL, 12, 4096, &buffer), misplaced);
    assert_eq!(BatchHeader::decode(JOURNAL, 76, 8192, &buffer), misplaced);
    let foreign = BatchHeader::decode(JournalId([0; 16]), 12, 8192, &buffer);
    assert_eq!(foreign, Err(BatchInvalid::NoHeader));
}

#[test]
fn rejects_numbers_that_no_superblock_may_contain() {
    let (_, example, records) = example();
    let (last_batch, last_record) = (COUNT_MAX - 1, COUNT_MAX - records.len() as u64);
    let with = |batch, first_record| {
        let mut buffer = vec![0; 3 * BLOCK_BYTES as usize];
        let header = BatchHeader { batch, first_record, ..example };
        seal_batch(JOURNAL, header, &records, &mut buffer);
        BatchHeader::decode(JOURNAL, 12, 8192, &buffer).map(|header| header.batch)
    };
    assert_eq!(with(last_batch, last_record), Ok(last_batch));
    for (batch, record) in [(last_batch + 1, 0), (77, last_record + 1), (77, u64::MAX)] {
        assert_eq!(with(batch, record), Err(BatchInvalid::Number), "{batch} {record}");
    }
}

#[test]
fn rejects_a_torn_batch() {
    let (buffer, ..) = example();
    for sectors in 0..buffer.len() / 512 - 8 {
        let mut torn = vec![0; buffer.len()];
        torn[..sectors * 512].copy_from_slice(&buffer[..sectors * 512]);
        assert_eq!(read(&torn).is_ok(), sectors * 512 >= 96 + 4608 + 160, "{sectors} sectors");
    }
    for len in 0..HEADER_BYTES {
        assert_eq!(read(&buffer[..len]), Err(BatchInvalid::NoHeader));
    }
    assert_eq!(read(&buffer[..4096]), Err(BatchInvalid::Length));
}

proptest! {
    /// Even forged batches with correct checksums cause neither a panic nor an invalid record.
    #[test]
    fn forged_batch_is_rejected_or_valid(
        payload_bytes in 0_u32..9000, count in 0_u32..70, raw: [u8; 32], kind in 0_u8..7,
        sector: u64, sectors in prop_oneof![0_u64..20, any::<u64>()], at in 0_u32..9000,
    ) {
        let mut buffer = vec![0x5a; 4 * BLOCK_BYTES as usize];
        let mut record = RawRecord::read_from_bytes(&raw).unwrap();
        record.kind = kind;
        record.sector = sector.into();
        record.sectors = sectors.into();
        record.payload_offset = at.into();
        let records_at = HEADER_BYTES + payload_bytes as usize;
        let mut header = BatchHeader::new(5, 77, 12, 8192, 0);
        header.payload_bytes = payload_bytes;
        header.records = count;
        for at in 0..count as usize {
            let from = records_at + at * RECORD_BYTES;
            buffer[from..from + RECORD_BYTES].copy_from_slice(record.as_bytes());
        }
        let records = &buffer[records_at..records_at + count as usize * RECORD_BYTES];
        header.records_checksum = checksum(header.batch, records);
        header.checksum = checksum(JOURNAL.seed(), header.encode().as_bytes());
        buffer[..HEADER_BYTES].copy_from_slice(header.encode().as_bytes());
        if let Ok((_, records)) = read(&buffer) {
            for record in records {
                prop_assert!(record.range.len > 0 && record.range.is_sector_aligned());
                prop_assert!(record.range.fits(u64::MAX / 2));
            }
        }
    }
}
