//! The amount of dirty data that a dump can save while the battery lasts.

use std::fmt;

/// Dirty bytes that can be dumped to the vault on battery: the vault's speed times the usable
/// runtime. The usable runtime is the trusted runtime less the margin, but at most half of the
/// trusted runtime: a dump planned to last until the battery is empty would fail.
///
/// `vault_bytes_per_second` is measured. `runtime_seconds` is reported by the UPS, of which
/// `trusted_percent` (1 to 100) is trusted, because batteries age before the UPS notices. Without
/// speed or runtime, or if the margin is not below the trusted runtime, the result is 0: nothing
/// may be dirty.
pub fn budget(
    vault_bytes_per_second: u64,
    runtime_seconds: u32,
    margin_seconds: u32,
    trusted_percent: u32,
) -> u64 {
    let runtime_ms = u64::from(runtime_seconds) * 10 * u64::from(trusted_percent.min(100));
    let margin_ms = u64::from(margin_seconds) * 1000;
    let usable_ms = runtime_ms.saturating_sub(margin_ms).min(runtime_ms / 2);
    let bytes = u128::from(vault_bytes_per_second) * u128::from(usable_ms) / 1000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Duration of a dump in milliseconds, rounded up; `None` if the vault's speed is unknown and there
/// is data to dump.
pub fn dump_ms(dirty_bytes: u64, vault_bytes_per_second: Option<u64>) -> Option<u64> {
    if dirty_bytes == 0 {
        return Some(0);
    }
    let speed = vault_bytes_per_second.filter(|speed| *speed > 0)?;
    let ms = (u128::from(dirty_bytes) * 1000).div_ceil(u128::from(speed));
    Some(u64::try_from(ms).unwrap_or(u64::MAX))
}

/// What would happen if mains failed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutageForecast {
    /// Duration of the dump in milliseconds; `None` if the vault was not measured.
    pub dump_ms: Option<u64>,
    /// Battery runtime in seconds; `None` if it is unknown.
    pub battery_seconds: Option<u32>,
}

impl fmt::Display for OutageForecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("if mains failed now: ")?;
        match self.dump_ms {
            Some(ms) => write!(f, "dump {} s, ", ms.div_ceil(1000))?,
            None => f.write_str("dump of unknown duration (vault not measured), ")?,
        }
        match self.battery_seconds {
            Some(seconds) => write!(f, "battery {seconds} s"),
            None => f.write_str("battery unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn uses_runtime_less_margin_but_at_most_half() {
        assert_eq!(budget(100 * MIB, 600, 60, 100), 300 * 100 * MIB, "half of the runtime");
        assert_eq!(budget(100 * MIB, 100, 60, 100), 40 * 100 * MIB, "less the margin");
        assert_eq!(budget(100 * MIB, 600, 60, 50), 150 * 100 * MIB, "an old battery");
        for nothing in [budget(0, 600, 60, 100), budget(9, 60, 60, 100), budget(9, 0, 0, 100)] {
            assert_eq!(nothing, 0);
        }
        assert_eq!(budget(9, 600, 60, 0), 0);
        assert_eq!(budget(u64::MAX, u32::MAX, 0, 100), u64::MAX);
    }

    #[test]
    fn forecast_text() {
        let dump = dump_ms(700 * MIB, Some(101 * MIB));
        let forecast = OutageForecast { dump_ms: dump, battery_seconds: Some(640) };
        assert_eq!(forecast.to_string(), "if mains failed now: dump 7 s, battery 640 s");
        let nothing = OutageForecast { dump_ms: dump_ms(1, None), battery_seconds: None };
        assert!(nothing.to_string().contains("not measured"));
        assert_eq!(dump_ms(0, None), Some(0));
        assert_eq!(dump_ms(1, Some(0)), None);
    }

    proptest! {
        #[test]
        fn dump_of_the_budget_leaves_half_the_runtime_and_the_margin(
            speed in 1u64..1 << 40, runtime: u32, margin: u32, percent in 1u32..=100,
        ) {
            let bytes = budget(speed, runtime, margin, percent);
            if bytes > 0 {
                let dump = dump_ms(bytes, Some(speed)).unwrap();
                let trusted_ms = u64::from(runtime) * 10 * u64::from(percent);
                prop_assert!(2 * dump <= trusted_ms);
                prop_assert!(dump + u64::from(margin) * 1000 <= trusted_ms);
            }
        }
    }
}
