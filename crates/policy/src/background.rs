//! How much of a resource background work may use, by the pressure on it: on the processors, or on
//! the disks.
//!
//! Pressure is the share of a second in which something waited for the resource. While it is high,
//! each sample lowers the share of background work by one step, so two samples lower it as far as
//! it goes. The share rises again, step by step, after a calm time. If the pressure returns soon
//! after a rise, background work is probably a part of it, and the calm time doubles, so that the
//! two do not alternate for ever.

use forebay_types::BackgroundShare;

/// The minimum pressure at which the share falls, and the maximum at which time counts as calm, in
/// thousandths. In between, the share stays.
const PRESSURE_HIGH: u32 = 200;
const PRESSURE_LOW: u32 = 100;
/// The calm time before the share rises by a step, in milliseconds: at first, and at most.
const CALM_MS_MIN: u64 = 4_000;
const CALM_MS_MAX: u64 = 64_000;
/// Pressure that returns within this many calm times after a rise is attributed to it.
const RELAPSE_CALMS: u64 = 4;

/// The control of one resource. See the module.
#[derive(Clone, Debug)]
pub struct BackgroundControl {
    share: BackgroundShare,
    calm_ms: u64,
    /// The beginning of the calm time.
    calm_since_ms: Option<u64>,
    /// The time of the last change, if it was a rise.
    raised_ms: Option<u64>,
}

impl Default for BackgroundControl {
    fn default() -> Self {
        Self {
            share: BackgroundShare::Full,
            calm_ms: CALM_MS_MIN,
            calm_since_ms: None,
            raised_ms: None,
        }
    }
}

impl BackgroundControl {
    /// The current share.
    pub const fn share(&self) -> BackgroundShare {
        self.share
    }

    /// Takes the pressure since the last sample, in thousandths of the time; `None` if it could not
    /// be measured, which counts as calm. Returns the share from now on.
    pub fn update(&mut self, now_ms: u64, pressure: Option<u32>) -> BackgroundShare {
        match pressure.unwrap_or(0) {
            PRESSURE_HIGH.. => {
                self.calm_since_ms = None;
                if !matches!(self.share, BackgroundShare::Least) {
                    self.lower(now_ms);
                }
            }
            0..=PRESSURE_LOW => {
                let since_ms = *self.calm_since_ms.get_or_insert(now_ms);
                if !self.share.is_full() && now_ms >= since_ms + self.calm_ms {
                    self.share = self.share.larger();
                    (self.raised_ms, self.calm_since_ms) = (Some(now_ms), Some(now_ms));
                }
            }
            _ => self.calm_since_ms = None,
        }
        self.share
    }

    fn lower(&mut self, now_ms: u64) {
        // The second step of one decrease says nothing about the last rise.
        if let Some(raised_ms) = self.raised_ms.take() {
            let is_relapse = now_ms < raised_ms + self.calm_ms * RELAPSE_CALMS;
            self.calm_ms = match is_relapse {
                true => (self.calm_ms * 2).min(CALM_MS_MAX),
                false => CALM_MS_MIN,
            };
        }
        self.share = self.share.smaller();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BackgroundShare::{Full, Least, Reduced};
    use proptest::prelude::*;

    /// One sample per second. Returns the share after each.
    fn shares(
        control: &mut BackgroundControl,
        from_s: u64,
        pressures: &[u32],
    ) -> Vec<BackgroundShare> {
        let samples = pressures.iter().zip(from_s..);
        samples.map(|(&pressure, s)| control.update(s * 1_000, Some(pressure))).collect()
    }

    #[test]
    fn two_samples_with_pressure_lower_the_share_and_calm_restores_it() {
        let mut control = BackgroundControl::default();
        assert_eq!(shares(&mut control, 0, &[0, 500, 500, 500]), [Full, Reduced, Least, Least]);
        let calm = shares(&mut control, 4, &[0; 10]);
        let expected = [[Least; 4].as_slice(), &[Reduced; 4], &[Full; 2]].concat();
        assert_eq!(calm, expected);
    }

    #[test]
    fn little_pressure_changes_nothing_and_is_no_calm() {
        let mut control = BackgroundControl::default();
        assert_eq!(shares(&mut control, 0, &[150; 9]), [Full; 9]);
        assert_eq!(shares(&mut control, 9, &[300]), [Reduced]);
        // Calm is interrupted each time.
        assert_eq!(shares(&mut control, 10, &[0, 0, 0, 150, 0, 0, 0, 150]), [Reduced; 8]);
    }

    #[test]
    fn unmeasured_pressure_counts_as_calm() {
        let mut control = BackgroundControl::default();
        control.update(0, Some(900));
        let found: Vec<_> = (1..7).map(|s| control.update(s * 1_000, None)).collect();
        assert_eq!(found, [Reduced, Reduced, Reduced, Reduced, Full, Full]);
    }

    /// The seconds at full share in an hour, and the number of falls from it, if background work
    /// at full share causes pressure itself.
    fn with_own_pressure(pressure: impl Fn(BackgroundShare) -> u32) -> (usize, usize) {
        let mut control = BackgroundControl::default();
        let (mut full, mut falls) = (0, 0);
        for s in 0..3_600u64 {
            let before = control.share();
            let after = control.update(s * 1_000, Some(pressure(before)));
            full += usize::from(after.is_full());
            falls += usize::from(before.is_full() && !after.is_full());
        }
        (full, falls)
    }

    #[test]
    fn pressure_of_its_own_does_not_make_it_alternate_for_ever() {
        let (full, falls) = with_own_pressure(|share| if share.is_full() { 600 } else { 20 });
        // Once in about a minute, for a second.
        assert!(falls < 3_600 / 50 && full < 120, "{falls} falls, {full} s at full share");
        let (full, falls) = with_own_pressure(|_| 90);
        assert_eq!((full, falls), (3_600, 0));
    }

    #[test]
    fn a_later_shortage_is_not_blamed_on_the_last_rise() {
        let mut control = BackgroundControl::default();
        for round in 0..10 {
            let from_s = round * 60;
            assert_eq!(shares(&mut control, from_s, &[500, 500]), [Reduced, Least]);
            let calm = shares(&mut control, from_s + 2, &[0; 50]);
            let full_after = calm.iter().position(|share| share.is_full());
            assert_eq!(full_after, Some(8), "round {round}");
        }
    }

    proptest! {
        #[test]
        fn calm_restores_the_full_share_in_the_end(
            pressures in prop::collection::vec(0u32..1_000, 0..400),
        ) {
            let mut control = BackgroundControl::default();
            shares(&mut control, 0, &pressures);
            let from_s = pressures.len() as u64;
            let calm = vec![0; (2 * CALM_MS_MAX / 1_000) as usize + 2];
            let found = shares(&mut control, from_s, &calm);
            prop_assert_eq!(found.last(), Some(&Full));
        }

        #[test]
        fn constant_pressure_keeps_the_least_share(pressure in PRESSURE_HIGH..1_001) {
            let mut control = BackgroundControl::default();
            let found = shares(&mut control, 0, &[pressure; 200]);
            prop_assert!(found[1..].iter().all(|share| *share == Least));
        }
    }
}
