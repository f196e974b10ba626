//! The position of a byte on the platter, and seek and rotation times.
//!
//! A disk is a sequence of zones from the outer edge (first byte, fastest) to the inner (last byte,
//! half as fast). A track holds what passes the head in one revolution; tracks are skewed by the
//! track switch time, so that a long transfer never waits. One number therefore describes the
//! position of a byte: its *media time*, the nanoseconds after which a transfer that started at
//! byte 0 gets there. The difference of two media times is the transfer time between the bytes, and
//! the media time modulo one revolution is the angle.

/// Zones of the disk. Real disks have between a dozen and thirty.
const ZONE_COUNT: u64 = 16;
const SECOND_NS: u128 = 1_000_000_000;
/// Fixed point: a full stroke is 2^32.
const STROKE_ONE: u128 = 1 << 32;

pub(super) struct Platter {
    zones: Vec<Zone>,
    size_bytes: u64,
    track_count: u64,
    revolution_ns: u64,
    /// From the end of one track to the start of the next.
    switch_ns: u64,
    /// The constant part of a seek.
    seek_base_ns: u64,
    /// The additional time of a full stroke; it scales with the square root of the distance.
    seek_stroke_ns: u64,
    /// The angle at time zero, as a time below a revolution.
    phase_ns: u64,
}

struct Zone {
    offset: u64,
    track: u64,
    media_ns: u64,
    track_bytes: u64,
}

/// Parameters of a platter.
pub(super) struct Dimensions {
    pub(super) size_bytes: u64,
    pub(super) revolution_ns: u64,
    pub(super) switch_ns: u64,
    pub(super) seek_average_ns: u64,
    pub(super) transfer_bytes_per_second: u64,
    pub(super) phase_ns: u64,
}

impl Platter {
    pub(super) fn new(dimensions: &Dimensions) -> Self {
        let Dimensions { size_bytes, revolution_ns, switch_ns, .. } = *dimensions;
        let zone_bytes = (size_bytes / ZONE_COUNT).next_multiple_of(512).max(512);
        let mut zones = Vec::new();
        let (mut offset, mut track, mut media_ns) = (0, 0, 0);
        while offset < size_bytes {
            // The inner edge has half the circumference of the outer.
            let index = zones.len() as u64;
            let rate = dimensions.transfer_bytes_per_second;
            let rate = rate - rate * index / (2 * (ZONE_COUNT - 1));
            // Including the track switch, the transfer has exactly the given rate.
            let bytes = u128::from(rate) * u128::from(revolution_ns + switch_ns) / SECOND_NS;
            let track_bytes = (bytes as u64).next_multiple_of(512).max(512);
            zones.push(Zone { offset, track, media_ns, track_bytes });
            let zone_bytes = zone_bytes.min(size_bytes - offset);
            let track_count = zone_bytes.div_ceil(track_bytes);
            offset += zone_bytes;
            track += track_count;
            media_ns += track_count * (revolution_ns + switch_ns);
        }
        // The mean square root of the distance of two random points on a unit line is 8/15.
        let seek_base_ns = (dimensions.seek_average_ns / 10).min(1_000_000);
        let seek_stroke_ns = (dimensions.seek_average_ns - seek_base_ns) * 15 / 8;
        Self {
            zones,
            size_bytes,
            track_count: track.max(1),
            revolution_ns,
            switch_ns,
            seek_base_ns,
            seek_stroke_ns,
            phase_ns: dimensions.phase_ns,
        }
    }

    fn zone_of(&self, offset: u64) -> &Zone {
        let after = self.zones.partition_point(|zone| zone.offset <= offset);
        &self.zones[after.saturating_sub(1)]
    }

    /// The track of a byte, counted from the outer edge.
    pub(super) fn track(&self, offset: u64) -> u64 {
        let zone = self.zone_of(offset);
        zone.track + (offset - zone.offset) / zone.track_bytes
    }

    /// The media time of a byte, or of the end of the disk.
    pub(super) fn media_ns(&self, offset: u64) -> u64 {
        let zone = self.zone_of(offset);
        let (track, rest) =
            ((offset - zone.offset) / zone.track_bytes, (offset - zone.offset) % zone.track_bytes);
        let in_track = u128::from(rest) * u128::from(self.revolution_ns);
        zone.media_ns
            + track * (self.revolution_ns + self.switch_ns)
            + (in_track / u128::from(zone.track_bytes)) as u64
    }

    /// The inverse of `media_ns`: the first byte not yet transferred.
    pub(super) fn offset_at(&self, media_ns: u64) -> u64 {
        let after = self.zones.partition_point(|zone| zone.media_ns <= media_ns);
        let zone = &self.zones[after.saturating_sub(1)];
        let end = self.zones.get(after).map_or(self.size_bytes, |next| next.offset);
        let period_ns = self.revolution_ns + self.switch_ns;
        let (track, rest) =
            ((media_ns - zone.media_ns) / period_ns, (media_ns - zone.media_ns) % period_ns);
        let in_track = u128::from(rest.min(self.revolution_ns)) * u128::from(zone.track_bytes)
            / u128::from(self.revolution_ns);
        (zone.offset + track * zone.track_bytes + in_track as u64).min(end)
    }

    /// The seek time between two tracks: `a + b * sqrt(distance)`.
    pub(super) fn seek_ns(&self, from_track: u64, to_track: u64) -> u64 {
        let distance = from_track.abs_diff(to_track);
        if distance == 0 {
            return 0;
        }
        let part = u128::from(distance) * STROKE_ONE * STROKE_ONE / u128::from(self.track_count);
        let stroke_ns = (part.isqrt() * u128::from(self.seek_stroke_ns) / STROKE_ONE) as u64;
        // The adjacent track takes a track switch.
        if distance == 1 { self.switch_ns } else { self.seek_base_ns + stroke_ns }
    }

    /// The rotational delay until a byte passes the head, with the head on its track at `at_ns`.
    pub(super) fn rotation_ns(&self, offset: u64, at_ns: u64) -> u64 {
        let revolution_ns = self.revolution_ns;
        let angle_ns = (at_ns + self.phase_ns) % revolution_ns;
        (self.media_ns(offset) % revolution_ns + revolution_ns - angle_ns) % revolution_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn platter(size_bytes: u64) -> Platter {
        Platter::new(&Dimensions {
            size_bytes,
            revolution_ns: 8_333_333,
            switch_ns: 1_000_000,
            seek_average_ns: 8_500_000,
            transfer_bytes_per_second: 120 << 20,
            phase_ns: 0,
        })
    }

    #[test]
    fn seeks_grow_with_distance_and_have_the_given_average() {
        let platter = platter(1 << 40);
        assert_eq!(platter.seek_ns(5, 5), 0);
        let full_ns = platter.seek_ns(0, platter.track_count);
        assert!((14_000_000..18_000_000).contains(&full_ns), "{full_ns}");
        let mut random = crate::random::Random::new(1);
        let mut place = || random.below(platter.track_count);
        let sum_ns: u64 = (0..10_000).map(|_| platter.seek_ns(place(), place())).sum();
        let mean_ns = sum_ns / 10_000;
        assert!((8_300_000..8_700_000).contains(&mean_ns), "{mean_ns}");
    }

    #[test]
    fn the_outer_edge_is_twice_as_fast_as_the_inner() {
        let platter = platter(1 << 40);
        let ns = |offset: u64| platter.media_ns(offset + (1 << 30)) - platter.media_ns(offset);
        // 1 GiB at 120 MiB/s.
        assert!(ns(0).abs_diff(8_533_333_333) < 20_000_000, "{}", ns(0));
        let inner = ns((1 << 40) - (2 << 30));
        assert!(inner.abs_diff(2 * 8_533_333_333) < 40_000_000, "{inner}");
    }

    proptest! {
        #[test]
        fn media_time_and_offset_are_inverse(
            sectors in 1u64..1 << 24,
            places in proptest::collection::vec(0.0..=1.0f64, 2),
        ) {
            let platter = platter(sectors * 512);
            let mut offsets: Vec<u64> =
                places.iter().map(|p| (p * sectors as f64) as u64 * 512).collect();
            offsets.sort_unstable();
            let media_ns: Vec<u64> = offsets.iter().map(|&o| platter.media_ns(o)).collect();
            prop_assert!(media_ns[0] <= media_ns[1]);
            prop_assert!(platter.track(offsets[0]) <= platter.track(offsets[1]));
            for (offset, media_ns) in offsets.into_iter().zip(media_ns) {
                // A nanosecond is less than a byte here, so rounding costs at most one byte.
                prop_assert!(platter.offset_at(media_ns).abs_diff(offset) <= 1);
                prop_assert_eq!(platter.rotation_ns(offset, media_ns), 0);
            }
        }
    }
}
