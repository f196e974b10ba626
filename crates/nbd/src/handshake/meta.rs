//! Metadata contexts: there is one, `base:allocation`.

use super::{ExportRefusal, Handshake, reply};
use crate::{
    Exports,
    proto::{BASE_ALLOCATION, STRING_BYTES_MAX, option, option_reply},
    wire::{WireReader, put_u32},
};

/// The id of [`BASE_ALLOCATION`] in replies to `SET_META_CONTEXT`. Lists use zero (M-04).
pub(super) const BASE_ALLOCATION_ID: u32 = 1;

/// The query for all contexts of the `base` namespace (M-03).
const BASE_WILDCARD: &[u8] = b"base:";

impl Handshake {
    /// Serves `LIST_META_CONTEXT` and `SET_META_CONTEXT`, except for the final reply, which the
    /// caller sends. [`Self::check_header`] has already cleared the selection (M-04).
    pub(super) fn on_meta_context(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<(), u32> {
        let is_set = option == option::SET_META_CONTEXT;
        if is_set && !self.is_chunked() {
            return Err(option_reply::ERR_INVALID);
        }
        let query = MetaQuery::parse(data).ok_or(option_reply::ERR_INVALID)?;
        let export = self.find(query.name, exports).map_err(|refusal| match refusal {
            ExportRefusal::Name => option_reply::ERR_INVALID,
            ExportRefusal::NotServable => option_reply::ERR_PLATFORM,
            // With selective TLS, only INFO and GO may be answered with TLS_REQD (T-08), so an
            // export that requires TLS is reported as unknown.
            _ => option_reply::ERR_UNKNOWN,
        })?;
        let selects = if is_set {
            query.names_allocation
        } else {
            query.names_allocation || query.is_wildcard || query.count == 0
        };
        if selects {
            let id = if is_set { BASE_ALLOCATION_ID } else { 0 };
            let len = 4 + BASE_ALLOCATION.len() as u32;
            reply::put_header(out, option, option_reply::META_CONTEXT, len);
            put_u32(out, id);
            out.extend_from_slice(BASE_ALLOCATION.as_bytes());
        }
        if is_set && selects {
            self.allocation_selected = Some(export.id);
        }
        Ok(())
    }
}

/// The data of both options, reduced to the queries this server supports.
struct MetaQuery<'a> {
    name: &'a [u8],
    count: u32,
    names_allocation: bool,
    is_wildcard: bool,
}

impl<'a> MetaQuery<'a> {
    /// Returns `None` if a length exceeds the data, or if bytes follow the last query (M-01, P-02).
    /// A hostile count is harmless: each query has at least four bytes, so the data bounds the
    /// loop.
    fn parse(data: &'a [u8]) -> Option<Self> {
        let mut reader = WireReader::new(data);
        let name_len = reader.u32()?;
        let name = reader.bytes(name_len)?;
        let count = reader.u32()?;
        let mut parsed = Self { name, count, names_allocation: false, is_wildcard: false };
        for _ in 0..count {
            let query_len = reader.u32()?;
            let query = reader.bytes(query_len)?;
            if query.len() > STRING_BYTES_MAX {
                return None;
            }
            parsed.names_allocation |= query == BASE_ALLOCATION.as_bytes();
            parsed.is_wildcard |= query == BASE_WILDCARD;
        }
        reader.is_empty().then_some(parsed)
    }
}
