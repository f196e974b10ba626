//! Shares a given amount of memory among devices by what it brings to each.

/// What memory would bring to one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// Sizes in bytes, and the gain with each in a unit that is common to all claims; both in
    /// ascending order of the sizes.
    pub points: Vec<(u64, f64)>,
}

/// Shares at most `total_bytes`: each step grants the size that gains most per additional byte.
/// Each share is one of the sizes of its claim, or zero. Sizes that gain nothing are skipped on the
/// way to a larger one that does.
pub fn share_memory(claims: &[Claim], total_bytes: u64) -> Vec<u64> {
    let mut shares = vec![(0u64, 0.0f64); claims.len()];
    let mut left = total_bytes;
    loop {
        let mut best: Option<(f64, usize, (u64, f64))> = None;
        for (at, claim) in claims.iter().enumerate() {
            let (bytes, gain) = shares[at];
            for &point in &claim.points {
                let more = point.0.saturating_sub(bytes);
                let per_byte = (point.1 - gain) / more as f64;
                let is_better = best.is_none_or(|(least, ..)| per_byte > least);
                if more > 0 && more <= left && point.1 > gain && is_better {
                    best = Some((per_byte, at, point));
                }
            }
        }
        let Some((_, at, point)) = best else { break };
        left -= point.0 - shares[at].0;
        shares[at] = point;
    }
    shares.into_iter().map(|(bytes, _)| bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(points: &[(u64, f64)]) -> Claim {
        Claim { points: points.to_vec() }
    }

    #[test]
    fn memory_goes_where_a_byte_brings_most() {
        let steep = claim(&[(10, 50.0), (20, 60.0), (40, 61.0)]);
        let flat = claim(&[(10, 20.0), (20, 40.0), (40, 80.0)]);
        assert_eq!(share_memory(&[steep.clone(), flat.clone()], 10), [10, 0]);
        assert_eq!(share_memory(&[steep.clone(), flat.clone()], 50), [10, 40]);
        assert_eq!(share_memory(&[steep, flat], 1_000), [40, 40]);
    }

    #[test]
    fn a_cliff_beyond_a_plateau_is_reached_if_there_is_enough() {
        let cliff = claim(&[(10, 0.0), (20, 0.0), (40, 90.0)]);
        assert_eq!(share_memory(std::slice::from_ref(&cliff), 39), [0]);
        assert_eq!(share_memory(&[cliff], 40), [40]);
    }

    #[test]
    fn without_gain_there_is_no_share() {
        assert_eq!(share_memory(&[claim(&[(10, 0.0)]), claim(&[])], 100), [0, 0]);
        assert!(share_memory(&[], 100).is_empty());
    }
}
