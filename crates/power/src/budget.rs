//! How much may be dirty, so that it can be saved while the battery lasts.

use std::fmt;

/// Dirty bytes that can be dumped to the vault on battery: the vault's measured speed for as long
/// as the battery lasts, less a margin, and never longer than half of the runtime. The half is
/// the rule for write-back at all: whoever reckons with the last second of a battery loses.
///
/// `vault_bytes_per_second` is measured, not promised. `runtime_seconds` is what the supply says;
/// of that, `believed_percent` (1 to 100) are believed, as batteries age before supplies notice.
/// Anything that can not be (no speed, no runtime, a margin above it) gives 0: nothing may be
/// dirty.
pub fn budget(
    vault_bytes_per_second: u64,
    runtime_seconds: u32,
    margin_seconds: u32,
    believed_percent: u32,
) -> u64 {
    let runtime_ms = u64::from(runtime_seconds) * 10 * u64::from(believed_percent.min(100));
    let margin_ms = u64::from(margin_seconds) * 1000;
    let usable_ms = runtime_ms.saturating_sub(margin_ms).min(runtime_ms / 2);
    let bytes = u128::from(vault_bytes_per_second) * u128::from(usable_ms) / 1000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// How long a dump of so many bytes takes, in milliseconds, rounded up. Without a measured speed
/// nothing can be said, and that is `None` unless there is nothing to dump.
pub fn dump_ms(dirty_bytes: u64, vault_bytes_per_second: Option<u64>) -> Option<u64> {
    if dirty_bytes == 0 {
        return Some(0);
    }
    let speed = vault_bytes_per_second.filter(|speed| *speed > 0)?;
    let ms = (u128::from(dirty_bytes) * 1000).div_ceil(u128::from(speed));
    Some(u64::try_from(ms).unwrap_or(u64::MAX))
}

/// What would happen if mains failed now, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// How long the dump would take, in milliseconds; `None` when the vault was not measured.
    pub dump_ms: Option<u64>,
    /// How long the battery would last, in seconds; `None` when that is not known.
    pub battery_seconds: Option<u32>,
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("if mains failed now: ")?;
        match self.dump_ms {
            Some(ms) => write!(f, "dump {} s, ", ms.div_ceil(1000))?,
            None => f.write_str("dump of unknown length (vault not measured), ")?,
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
    fn the_smaller_of_runtime_less_margin_and_half_the_runtime() {
        assert_eq!(budget(100 * MIB, 600, 60, 100), 300 * 100 * MIB, "half of it");
        assert_eq!(budget(100 * MIB, 100, 60, 100), 40 * 100 * MIB, "less the margin");
        assert_eq!(budget(100 * MIB, 600, 60, 50), 150 * 100 * MIB, "an old battery");
        for nothing in [budget(0, 600, 60, 100), budget(9, 60, 60, 100), budget(9, 0, 0, 100)] {
            assert_eq!(nothing, 0);
        }
        assert_eq!(budget(9, 600, 60, 0), 0);
        assert_eq!(budget(u64::MAX, u32::MAX, 0, 100), u64::MAX);
    }

    #[test]
    fn the_sentence() {
        let dump = dump_ms(700 * MIB, Some(101 * MIB));
        let forecast = Forecast { dump_ms: dump, battery_seconds: Some(640) };
        assert_eq!(forecast.to_string(), "if mains failed now: dump 7 s, battery 640 s");
        let nothing = Forecast { dump_ms: dump_ms(1, None), battery_seconds: None };
        assert!(nothing.to_string().contains("not measured"));
        assert_eq!(dump_ms(0, None), Some(0));
        assert_eq!(dump_ms(1, Some(0)), None);
    }

    proptest! {
        #[test]
        fn what_is_allowed_is_dumped_before_half_the_battery_and_the_margin(
            speed in 1u64..1 << 40, runtime: u32, margin: u32, believed in 1u32..=100,
        ) {
            let bytes = budget(speed, runtime, margin, believed);
            if bytes > 0 {
                let dump = dump_ms(bytes, Some(speed)).unwrap();
                let believed_ms = u64::from(runtime) * 10 * u64::from(believed);
                prop_assert!(2 * dump <= believed_ms);
                prop_assert!(dump + u64::from(margin) * 1000 <= believed_ms);
            }
        }
    }
}
