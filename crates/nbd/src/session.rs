//! A session in the transmission phase, as a record that another process continues it from.
//!
//! ```text
//! magic u32, version u16, length of the rest u32, then fields in the order of [`SessionRecord`],
//! and a checksum u64 of all bytes before it; numbers are big-endian, as everything in NBD
//! ```
//!
//! The reader trusts nothing: it checks every length and value, and [`SessionRecord::terms_on`]
//! compares the terms with the export as it is now. A record that is damaged, of another version,
//! or whose export has lost something that the client was promised, cannot be continued.

use crate::{
    ExportInfo, Negotiated,
    proto::export_flag,
    wire::{WireReader, put_u16, put_u32, put_u64},
};
use forebay_types::limits::VOLUME_NAME_BYTES_MAX;

/// The version of the record. A reader takes no other one.
pub const SESSION_VERSION: u16 = 1;
/// The most bytes of input that a record has: several receive buffers. A client that sends more
/// before it is paused is disconnected.
pub const SESSION_INPUT_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a record.
pub const SESSION_RECORD_BYTES_MAX: usize = SESSION_INPUT_BYTES_MAX + VOLUME_NAME_BYTES_MAX + 256;

/// `FBSN`.
const MAGIC: u32 = 0x4642_534e;
const HEADER_BYTES: usize = 10;
const CHECKSUM_BYTES: usize = 8;

const STRUCTURED: u16 = 1;
const EXTENDED: u16 = 2;
const BASE_ALLOCATION: u16 = 4;

/// Flags of an export that inform the client, and promise nothing.
const HINTS: u16 = export_flag::ROTATIONAL;

/// A session at the boundary of a request, with nothing in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// The name of the export.
    pub export: String,
    /// What tells the export from another one of the same name.
    pub identity: [u8; 32],
    /// What was agreed in the handshake. The number of the volume is not part of the record.
    pub terms: Negotiated,
    /// The number of the client in lists.
    pub client: u64,
    /// How long it has been connected, in milliseconds.
    pub age_ms: u64,
    /// Bytes that it has read and written.
    pub done_bytes: [u64; 2],
    /// What was received and not parsed.
    pub input: Vec<u8>,
}

/// Why a session cannot be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The record is not complete, or damaged.
    #[error("its record is damaged")]
    Damaged,
    /// Another version of the program has written it.
    #[error("its record has version {0}, and not {SESSION_VERSION}")]
    Version(u16),
    /// The record contradicts itself.
    #[error("its record is invalid")]
    Invalid,
    /// The export has another disk than before.
    #[error("the volume has another disk")]
    OtherDisk,
    /// The export is smaller than the client was told.
    #[error("the volume is smaller than before")]
    Smaller,
    /// The export refuses what the client may request.
    #[error("the volume lacks what the client was offered")]
    Lost,
    /// The export is available over TLS only.
    #[error("the volume is available over TLS only")]
    TlsOnly,
}

impl SessionRecord {
    /// Appends the record to `out`.
    ///
    /// # Panics
    /// If the input or the name is too long.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.input.len() <= SESSION_INPUT_BYTES_MAX, "the input is limited");
        assert!(self.export.len() <= VOLUME_NAME_BYTES_MAX, "a volume has a valid name");
        let Negotiated { size_bytes, flags, block_min, payload_max, .. } = self.terms;
        let base_allocation = self.terms.base_allocation;
        let options = (u16::from(self.terms.structured) * STRUCTURED)
            | (u16::from(self.terms.extended) * EXTENDED)
            | (u16::from(base_allocation.is_some()) * BASE_ALLOCATION);
        let start = out.len();
        put_u32(out, MAGIC);
        put_u16(out, SESSION_VERSION);
        put_u32(out, 0);
        put_u32(out, self.export.len() as u32);
        out.extend_from_slice(self.export.as_bytes());
        out.extend_from_slice(&self.identity);
        put_u64(out, size_bytes);
        put_u16(out, flags);
        put_u16(out, options);
        put_u32(out, base_allocation.unwrap_or(0));
        put_u32(out, block_min);
        put_u32(out, payload_max);
        put_u64(out, self.client);
        put_u64(out, self.age_ms);
        self.done_bytes.iter().for_each(|&bytes| put_u64(out, bytes));
        put_u32(out, self.input.len() as u32);
        out.extend_from_slice(&self.input);
        let rest = out.len() - start - HEADER_BYTES + CHECKSUM_BYTES;
        out[start + HEADER_BYTES - 4..start + HEADER_BYTES]
            .copy_from_slice(&(rest as u32).to_be_bytes());
        let sum = checksum(&out[start..]);
        put_u64(out, sum);
    }

    /// Reads a record, which is all of `bytes`.
    ///
    /// # Errors
    /// It is damaged, invalid, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, SessionError> {
        if bytes.len() > SESSION_RECORD_BYTES_MAX {
            return Err(SessionError::Damaged);
        }
        let mut header = WireReader::new(bytes);
        let (magic, version) = (header.u32(), header.u16());
        if magic != Some(MAGIC) {
            return Err(SessionError::Damaged);
        }
        match version {
            Some(SESSION_VERSION) => {}
            Some(other) => return Err(SessionError::Version(other)),
            None => return Err(SessionError::Damaged),
        }
        let rest = header.u32().ok_or(SessionError::Damaged)?;
        let (body, sum) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .filter(|_| bytes.len() == HEADER_BYTES + rest as usize)
            .ok_or(SessionError::Damaged)?;
        if checksum(body) != u64::from_be_bytes(*sum) {
            return Err(SessionError::Damaged);
        }
        let mut fields = WireReader::new(&body[HEADER_BYTES..]);
        let record = Self::read(&mut fields).filter(|_| fields.is_empty());
        record.filter(Self::is_valid).ok_or(SessionError::Invalid)
    }

    fn read(fields: &mut WireReader<'_>) -> Option<Self> {
        let name_len = fields.u32()?;
        let export = std::str::from_utf8(fields.bytes(name_len)?).ok()?.to_owned();
        let identity = fields.bytes(32)?.try_into().ok()?;
        let (size_bytes, flags, options) = (fields.u64()?, fields.u16()?, fields.u16()?);
        let context = fields.u32()?;
        let (block_min, payload_max) = (fields.u32()?, fields.u32()?);
        let (client, age_ms) = (fields.u64()?, fields.u64()?);
        let done_bytes = [fields.u64()?, fields.u64()?];
        let input_len = fields.u32()?;
        let input = fields.bytes(input_len)?.to_vec();
        if options & !(STRUCTURED | EXTENDED | BASE_ALLOCATION) != 0 {
            return None;
        }
        let terms = Negotiated {
            size_bytes,
            flags,
            structured: options & STRUCTURED != 0,
            extended: options & EXTENDED != 0,
            base_allocation: (options & BASE_ALLOCATION != 0).then_some(context),
            block_min,
            payload_max,
            ..Negotiated::new(&ExportInfo::new(forebay_types::VolumeId(0), "", 0))
        };
        Some(Self { export, identity, terms, client, age_ms, done_bytes, input })
    }

    /// Whether the fields fit together. What depends on the export, `terms_on` checks.
    fn is_valid(&self) -> bool {
        let terms = &self.terms;
        self.export.len() <= VOLUME_NAME_BYTES_MAX
            && !self.export.contains('\0')
            && self.input.len() <= SESSION_INPUT_BYTES_MAX
            && terms.has(export_flag::HAS_FLAGS)
            && (terms.structured || !terms.extended)
            && (terms.structured || terms.base_allocation.is_none())
            && (terms.structured || !terms.has(export_flag::SEND_DF))
            && terms.block_min.is_power_of_two()
            && self.client > 0
    }

    /// The terms of the session on its export, as that is now. It may have grown.
    ///
    /// # Errors
    /// The export, whose identity is given beside it, is another one, or does not keep what the
    /// client was promised.
    pub fn terms_on(
        &self,
        export: &ExportInfo,
        identity: &[u8; 32],
    ) -> Result<Negotiated, SessionError> {
        let terms = Negotiated { export: export.id, ..self.terms };
        let now = export.flags(terms.structured);
        if export.name != self.export || *identity != self.identity {
            return Err(SessionError::OtherDisk);
        }
        if export.tls_only {
            return Err(SessionError::TlsOnly);
        }
        if terms.size_bytes > export.size_bytes {
            return Err(SessionError::Smaller);
        }
        // A client that does not know that the volume is read-only would see errors.
        let is_read_only_now = now & export_flag::READ_ONLY & !terms.flags != 0;
        let promised = terms.flags & !(HINTS | export_flag::READ_ONLY);
        if !export.is_valid()
            || is_read_only_now
            || promised & !now != 0
            || terms.block_min < export.block_min
            || terms.payload_max > export.payload_max
        {
            return Err(SessionError::Lost);
        }
        Ok(terms)
    }
}

/// FNV-1a: detects damaged and torn records. It is no protection against forged ones.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
