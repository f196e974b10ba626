//! Block status replies, compared with a per-block oracle.

use super::terms;
use crate::{EXTENTS_PER_REPLY_MAX, Extent, NbdCommand, NbdRequest, Negotiated, wire::WireReader};
use proptest::prelude::*;

fn request(len: u64, req_one: bool) -> NbdRequest {
    NbdRequest {
        cookie: 1,
        offset: 0,
        len,
        payload_len: 0,
        command: NbdCommand::BlockStatus,
        fua: false,
        no_hole: false,
        df: false,
        req_one,
        fast_zero: false,
        error: None,
    }
}

/// The extents of a reply. Also checks the reply's framing.
fn reply(terms: &Negotiated, request: &NbdRequest, extents: &[Extent]) -> Vec<(u64, u64)> {
    let mut out = b"before".to_vec();
    terms.reply_block_status(request, extents.iter().copied(), &mut out);
    let mut reader = WireReader::new(&out[6..]);
    let kind = if terms.extended { 6 } else { 5 };
    _ = reader.u32();
    assert_eq!((reader.u16(), reader.u16(), reader.u64()), (Some(1), Some(kind), Some(1)));
    let len = if terms.extended {
        assert_eq!(reader.u64(), Some(request.offset));
        reader.u64().unwrap()
    } else {
        u64::from(reader.u32().unwrap())
    };
    let header_len = if terms.extended { 32 } else { 20 };
    assert_eq!(len, out.len() as u64 - 6 - header_len);
    assert_eq!(reader.u32(), terms.base_allocation);
    let count = terms.extended.then(|| reader.u32().unwrap());
    let mut got = Vec::new();
    while !reader.is_empty() {
        got.push(if terms.extended {
            (reader.u64().unwrap(), reader.u64().unwrap())
        } else {
            (u64::from(reader.u32().unwrap()), u64::from(reader.u32().unwrap()))
        });
    }
    assert_eq!(count.unwrap_or(got.len() as u32), got.len() as u32, "XH-04");
    got
}

const fn data(len: u64) -> Extent {
    Extent { len, hole: false, zero: false }
}

const fn hole(len: u64) -> Extent {
    Extent { len, hole: true, zero: true }
}

#[test]
fn m_07_extents_are_consecutive_and_never_none() {
    for terms in [terms(true, false), terms(true, true)] {
        let got = reply(&terms, &request(4096, false), &[data(512), hole(1024), data(512)]);
        assert_eq!(got, [(512, 0), (1024, 3), (512, 0)], "a reply may end early");
        assert_eq!(reply(&terms, &request(4096, false), &[]), [(4096, 0)]);
        assert_eq!(reply(&terms, &request(4096, false), &[hole(0), data(0)]), [(4096, 0)]);
        assert_eq!(reply(&terms, &request(4096, false), &[hole(100)]), [(4096, 0)]);
    }
}

#[test]
fn m_08_req_one_gives_one_extent_within_the_request() {
    for terms in [terms(true, false), terms(true, true)] {
        let extents = [data(512), data(512), hole(512), data(1 << 30)];
        assert_eq!(reply(&terms, &request(4096, true), &extents), [(1024, 0)]);
        assert_eq!(reply(&terms, &request(4096, true), &[hole(1 << 40)]), [(4096, 3)]);
        let got = reply(&terms, &request(4096, false), &extents);
        assert_eq!(got, [(1024, 0), (512, 3), (2560, 0)]);
    }
}

#[test]
fn m_09_extents_are_whole_blocks_and_their_number_is_bounded() {
    let terms = terms(true, false);
    // Sector 1 is shared by a hole and data: it is neither a hole nor zero.
    let got = reply(&terms, &request(4096, false), &[hole(700), data(300), hole(3096)]);
    assert_eq!(got, [(512, 3), (512, 0), (3072, 3)]);
    let zeroes = Extent { len: 300, hole: false, zero: true };
    let got = reply(&terms, &request(1536, false), &[hole(700), zeroes, hole(1000)]);
    assert_eq!(got, [(512, 3), (512, 2), (512, 3)]);
    let many: Vec<_> =
        (0..10_000).map(|i| if i % 2 == 0 { data(512) } else { hole(512) }).collect();
    let got = reply(&terms, &request(512 * 10_000, false), &many);
    assert_eq!(got.len(), EXTENTS_PER_REPLY_MAX as usize);
}

#[test]
fn m_11_p_07_extents_beyond_32_bits_are_cut() {
    let huge = request(0xffff_fe00, false);
    let compact = terms(true, false);
    assert_eq!(reply(&compact, &huge, &[hole(u64::MAX)]), [(0xffff_fe00, 3)]);
    assert_eq!(reply(&compact, &huge, &[hole(u64::MAX), data(u64::MAX)]), [(0xffff_fe00, 3)]);
    let got = reply(&compact, &huge, &[data(0xffff_fc00), hole(u64::MAX)]);
    assert_eq!(got, [(0xffff_fc00, 0), (512, 3)]);
    let extended = terms(true, true);
    let got = reply(&extended, &request(1 << 40, false), &[hole(1 << 33), data(1 << 50)]);
    assert_eq!(got, [(1 << 33, 3), ((1 << 40) - (1 << 33), 0)]);
    // A length that only extended headers can request is truncated in the compact form.
    let got = reply(&compact, &request(1 << 40, false), &[hole(1 << 33), data(1 << 50)]);
    assert_eq!(got, [(0xffff_fe00, 3)]);
}

proptest! {
    #[test]
    fn replies_agree_with_a_per_block_oracle(
        pieces in prop::collection::vec((0u64..2000, any::<bool>(), any::<bool>()), 0..20),
        blocks in 1u64..24,
        block_min in prop::sample::select(vec![1u32, 512, 4096]),
        extended: bool,
        req_one: bool,
    ) {
        let terms = Negotiated { block_min, ..terms(true, extended) };
        let extents: Vec<_> =
            pieces.iter().map(|&(len, hole, zero)| Extent { len, hole, zero }).collect();
        let request = request(blocks * u64::from(block_min), req_one);
        let got = reply(&terms, &request, &extents);

        let bytes: Vec<u64> = extents
            .iter()
            .flat_map(|e| {
                let bits = u64::from(e.hole) | u64::from(e.zero) << 1;
                std::iter::repeat_n(bits, e.len as usize)
            })
            .take(request.len as usize)
            .collect();
        let whole = bytes.chunks_exact(block_min as usize);
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for bits in whole.map(|block| block.iter().fold(3, |all, bits| all & bits)) {
            match runs.last_mut() {
                Some((len, last)) if *last == bits => *len += u64::from(block_min),
                _ => runs.push((u64::from(block_min), bits)),
            }
        }
        if runs.is_empty() {
            runs.push((request.len, 0));
        }
        if req_one {
            runs.truncate(1);
        }
        prop_assert_eq!(got, runs);
    }
}
