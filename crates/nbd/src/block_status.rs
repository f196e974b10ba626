//! Replies to `BLOCK_STATUS`: converts the extents of a backing store to the protocol's form.
//!
//! A backing store reports extents of any length and alignment, and adjacent extents may have the
//! same state. On the wire, adjacent extents differ (M-09), boundaries are multiples of the minimum
//! block size, the first extent starts at the request's offset, no extent ends past the request
//! (M-08), and a compact extent has a 32-bit length (M-11). A reply may stop early if it has at
//! least one extent; the client asks again for the rest. A block that spans several extents is
//! reported as a hole, or as zero, only if all of them are (M-10).

use crate::{
    NbdRequest, Negotiated,
    proto::{allocation, chunk},
    wire::{put_u32, put_u64},
};
use forebay_types::Extent;

/// Maximum number of extents in one reply. The protocol allows 2^20. This lower limit bounds the
/// memory that one 32-byte request can claim to 64 KiB, and costs one round trip per 4096 extents.
pub const EXTENTS_PER_REPLY_MAX: u32 = 4096;

fn bits_of(extent: Extent) -> u32 {
    let hole = if extent.hole { allocation::HOLE } else { 0 };
    let zero = if extent.zero { allocation::ZERO } else { 0 };
    hole | zero
}

pub(crate) fn extent_of(len: u64, bits: u32) -> Extent {
    Extent { len, hole: bits & allocation::HOLE != 0, zero: bits & allocation::ZERO != 0 }
}

impl Negotiated {
    /// Appends the reply to a block status request. `extents` are consecutive from the request's
    /// offset; they may end before the request does, or run past it. If they do not cover the first
    /// block, the reply reports the whole request as allocated data, which is always safe.
    ///
    /// # Panics
    /// If no context was selected: [`Negotiated::parse`] rejects such requests.
    pub fn reply_block_status(
        &self,
        request: &NbdRequest,
        extents: impl IntoIterator<Item = Extent>,
        out: &mut Vec<u8>,
    ) {
        let context = self.base_allocation.expect("parse rejects block status without a context");
        let kind = if self.extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
        let header_at = out.len();
        self.put_chunk_header(request.reply_to(), kind, true, 0, out);
        put_u32(out, context);
        let count_at = out.len();
        if self.extended {
            put_u32(out, 0);
        }
        let (mut count, mut described) = (0, 0);
        let mut put = |len: u64, bits: u32| {
            count += 1;
            described += len;
            let cut = self.put_extent(len, bits, out);
            !cut && !request.req_one && count < EXTENTS_PER_REPLY_MAX
        };
        BlockRuns::new(request.len, self.block_min).feed(extents, &mut put);
        let is_inside = count > 0 && described <= request.len;
        assert!(is_inside, "{count} extents of {described} bytes for {request:?}");
        if self.extended {
            out[count_at..count_at + 4].copy_from_slice(&count.to_be_bytes());
        }
        self.patch_chunk_len(header_at, out);
    }

    /// Appends one extent and returns whether it was truncated to fit 32 bits.
    fn put_extent(&self, len: u64, bits: u32, out: &mut Vec<u8>) -> bool {
        debug_assert!(len.is_multiple_of(self.block_min.into()), "{len} bytes are no blocks");
        if self.extended {
            put_u64(out, len);
            put_u64(out, u64::from(bits));
            return false;
        }
        // The largest multiple of the block size (a power of two) that fits 32 bits.
        let len_max = !(self.block_min - 1);
        let len_put = u32::try_from(len).map_or(len_max, |len| len.min(len_max));
        put_u32(out, len_put);
        put_u32(out, bits);
        u64::from(len_put) < len
    }

    /// Writes the length of the chunk that starts at `header_at` and ends with `out`.
    fn patch_chunk_len(&self, header_at: usize, out: &mut [u8]) {
        if self.extended {
            let len_at = header_at + crate::proto::EXTENDED_REPLY_BYTES - 8;
            let len = (out.len() - len_at - 8) as u64;
            out[len_at..len_at + 8].copy_from_slice(&len.to_be_bytes());
        } else {
            let len_at = header_at + crate::proto::STRUCTURED_REPLY_BYTES - 4;
            let len = (out.len() - len_at - 4) as u32;
            out[len_at..len_at + 4].copy_from_slice(&len.to_be_bytes());
        }
    }
}

/// Merges extents into runs of whole blocks, adjacent runs differing, up to the end of a request.
struct BlockRuns {
    /// Length of the request in bytes, a multiple of `block`.
    request_len: u64,
    /// Bytes of the request not yet covered by an extent.
    left: u64,
    /// Block size in bytes, a power of two.
    block: u64,
    /// Bytes covered of a block that is not complete; less than `block`.
    partial_len: u64,
    /// The state bits common to all extents in the incomplete block.
    partial_bits: u32,
    /// The last run, which the next extent may still extend.
    open: Option<(u64, u32)>,
}

impl BlockRuns {
    fn new(request_len: u64, block: u32) -> Self {
        Self {
            request_len,
            left: request_len,
            block: u64::from(block),
            partial_len: 0,
            partial_bits: 0,
            open: None,
        }
    }

    /// Passes each run to `put` in order until `put` returns `false`. Passes at least one run. An
    /// incomplete last block is left out; the client asks for it again.
    fn feed(
        mut self,
        extents: impl IntoIterator<Item = Extent>,
        put: &mut impl FnMut(u64, u32) -> bool,
    ) {
        for extent in extents {
            let len = extent.len.min(self.left);
            self.left -= len;
            if len > 0 && !self.cover(len, bits_of(extent), put) {
                return;
            }
            if self.left == 0 {
                break;
            }
        }
        let (len, bits) = self.open.unwrap_or((self.request_len, 0));
        put(len, bits);
    }

    /// Covers the next `len` bytes: completes the current block, adds whole blocks, then starts
    /// another block with the rest. Returns `false` once `put` returned `false`.
    fn cover(&mut self, len: u64, bits: u32, put: &mut impl FnMut(u64, u32) -> bool) -> bool {
        debug_assert!(self.partial_len < self.block, "a whole block is not reported");
        let mut len = len;
        if self.partial_len > 0 {
            let more = len.min(self.block - self.partial_len);
            len -= more;
            self.partial_len += more;
            self.partial_bits &= bits;
            if self.partial_len < self.block {
                return true;
            }
            if !self.push(self.block, self.partial_bits, put) {
                return false;
            }
        }
        self.partial_len = len % self.block;
        self.partial_bits = bits;
        let whole = len - self.partial_len;
        whole == 0 || self.push(whole, bits, put)
    }

    /// Extends the open run, or passes it to `put` and opens another.
    fn push(&mut self, len: u64, bits: u32, put: &mut impl FnMut(u64, u32) -> bool) -> bool {
        match &mut self.open {
            Some((open_len, open_bits)) if *open_bits == bits => {
                *open_len += len;
                true
            }
            open => open.replace((len, bits)).is_none_or(|(len, bits)| put(len, bits)),
        }
    }
}
