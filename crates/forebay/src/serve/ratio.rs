//! The shares of the cache for reads and for writes: as the operator set them, or by default.
//!
//! The share for writes is the dirty limit. It applies only while a volume is in write-back mode,
//! and a UPS may allow less. A ratio that was set by a command is recorded in the pool, so that the
//! next server uses it, too.

use crate::report::problem as problem_of;
use forebay_api::{CacheRatio as RatioStatus, PowerStatus, Problem};
use forebay_config::{CacheRatio, MemorySetting, ServerChange};
use forebay_runtime::{MemoryStatus, Runtime};
use forebay_types::{Size, WriteShare};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stands for `auto` in the pool. 0 stands for no setting, and any other number for the percentage
/// for writes, plus 1.
const AUTO: u64 = u64::MAX;

/// The cache ratio of a running server.
pub(super) struct Ratio {
    runtime: Arc<Runtime>,
    /// Held while a ratio is checked and set.
    state: Mutex<RatioState>,
}

struct RatioState {
    setting: CacheRatio,
    /// The ratio that was last logged, without the reason.
    logged: Option<(String, u8, u8)>,
}

/// Sets the ratio of a runtime that has just started: the one recorded in its pool, or else the
/// configured one. Returns it.
pub(super) fn begin(runtime: &Runtime, configured: CacheRatio) -> CacheRatio {
    let shares = runtime.write_share();
    let setting = decode(shares.recorded()).unwrap_or(configured);
    shares.set(setting.write_share());
    setting
}

impl Ratio {
    /// The ratio of a runtime, which has begun with `setting`.
    pub(super) fn new(runtime: Arc<Runtime>, setting: CacheRatio) -> Self {
        Self { runtime, state: Mutex::new(RatioState { setting, logged: None }) }
    }

    fn state(&self) -> MutexGuard<'_, RatioState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the ratio that a command requests, after `before`, which sets the memory, has
    /// succeeded. The next server uses the ratio, too, if it adopts the pool.
    ///
    /// # Errors
    /// The share for writes is too small for a volume, or too large for the vault, or `before`
    /// fails. Nothing changes then.
    pub(super) fn set(
        &self,
        change: &ServerChange,
        before: impl FnOnce() -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        self.apply(change, encode, before)
    }

    /// Sets the ratio because the configuration has changed. It overrides what a command has set.
    ///
    /// # Errors
    /// As [`Ratio::set`].
    pub(super) fn configure(
        &self,
        change: &ServerChange,
        before: impl FnOnce() -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        self.apply(change, |_| 0, before)
    }

    fn apply(
        &self,
        change: &ServerChange,
        word: impl FnOnce(CacheRatio) -> u64,
        before: impl FnOnce() -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let mut state = self.state();
        let Some(ratio) = change.cache_ratio else { return before() };
        let shares = match change.memory {
            Some(MemorySetting::Bytes(bytes)) => self.runtime.write_share_at(bytes),
            Some(MemorySetting::Auto) | None => self.runtime.write_share(),
        };
        shares.check(ratio.write_share()).map_err(|error| problem_of(&error))?;
        before()?;
        shares.set(ratio.write_share());
        shares.record(word(ratio));
        state.setting = ratio;
        Ok(())
    }

    /// The effective shares, and why they are what they are.
    pub(super) fn status(&self, memory: &MemoryStatus, power: Option<&PowerStatus>) -> RatioStatus {
        let setting = self.state().setting;
        let shortage = self.runtime.write_share().current_shortage();
        let shortage = shortage.map(|error| error.to_string());
        decide(&Inputs::new(setting, memory, self.runtime.volumes().writers(), power, shortage))
    }

    /// Logs the shares if they differ from those that were logged last.
    pub(super) fn log(&self, status: &RatioStatus) {
        let RatioStatus { setting, read_percent, write_percent, write_bytes, reason } = status;
        let now = Some((setting.clone(), *read_percent, *write_percent));
        if std::mem::replace(&mut self.state().logged, now.clone()) != now {
            tracing::info!(
                setting,
                read_percent,
                write_percent,
                dirty_limit = %Size(*write_bytes),
                reason,
                "cache ratio"
            );
        }
    }
}

fn encode(ratio: CacheRatio) -> u64 {
    match ratio {
        CacheRatio::Auto => AUTO,
        CacheRatio::Writes(share) => u64::from(share.percent()) + 1,
    }
}

fn decode(word: u64) -> Option<CacheRatio> {
    match word {
        AUTO => Some(CacheRatio::Auto),
        word => {
            let percent = u8::try_from(word.checked_sub(1)?).ok()?;
            WriteShare::of_percent(percent).map(CacheRatio::Writes)
        }
    }
}

/// The inputs of the effective shares.
struct Inputs {
    setting: CacheRatio,
    /// The memory for data, and the part of it that pinned ranges take.
    pool_bytes: u64,
    pinned_bytes: u64,
    /// The dirty limit of the setting.
    limit_bytes: u64,
    /// Volumes in write-back mode, and those among them that only a UPS protects.
    writers: usize,
    ups_writers: usize,
    /// The dirty data that the UPS allows.
    ups_bytes: Option<u64>,
    /// Why the share is too small for a volume.
    shortage: Option<String>,
}

impl Inputs {
    fn new(
        setting: CacheRatio,
        memory: &MemoryStatus,
        [writers, ups_writers]: [usize; 2],
        power: Option<&PowerStatus>,
        shortage: Option<String>,
    ) -> Self {
        Self {
            setting,
            pool_bytes: memory.pool_bytes,
            pinned_bytes: memory.pinned_bytes,
            limit_bytes: memory.dirty_bytes_max,
            writers,
            ups_writers,
            ups_bytes: power.map(|power| power.dirty_bytes_max),
            shortage,
        }
    }
}

fn decide(inputs: &Inputs) -> RatioStatus {
    let with = |write_bytes: u64, reason: String| {
        let pool_bytes = inputs.pool_bytes.max(1);
        let percent = (write_bytes.min(pool_bytes) * 100 + pool_bytes / 2) / pool_bytes;
        let write_percent = percent as u8;
        let (setting, read_percent) = (inputs.setting.to_string(), 100 - write_percent);
        RatioStatus { setting, read_percent, write_percent, write_bytes, reason }
    };
    if inputs.writers == 0 {
        return with(0, "no volume is in write-back mode, so all of it is for reads".to_owned());
    }
    let mut reason = match inputs.setting {
        CacheRatio::Auto => "by default, two thirds are for writes".to_owned(),
        CacheRatio::Writes(share) if share == WriteShare::NOTHING => {
            "set so that nothing is for writes, which go through to the disks".to_owned()
        }
        CacheRatio::Writes(share) => format!("{} % were set for writes", share.percent()),
    };
    // The dirty limit is a share of the memory beside pinned ranges.
    if inputs.pinned_bytes > 0 && inputs.limit_bytes > 0 {
        reason += ", not counting pinned memory";
    }
    let mut write_bytes = inputs.limit_bytes;
    match inputs.ups_bytes.filter(|&bytes| inputs.ups_writers > 0 && bytes < write_bytes) {
        Some(bytes) if inputs.ups_writers == inputs.writers => {
            write_bytes = bytes;
            reason += &format!("; the UPS allows {}", Size(bytes >> 20 << 20));
        }
        Some(bytes) => {
            let allowed = Size(bytes >> 20 << 20);
            reason += &format!("; the UPS allows {allowed} to the volumes that only it protects");
        }
        None => {}
    }
    if write_bytes > 0 {
        reason += "; reads also use what writes do not need";
    }
    if let Some(shortage) = &inputs.shortage {
        reason += &format!("; {shortage}");
    }
    with(write_bytes, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn inputs(setting: &str) -> Inputs {
        let setting: CacheRatio = setting.parse().unwrap();
        let limit_bytes = match setting.write_share() {
            None => 60 * MIB,
            Some(share) => 90 * MIB * u64::from(share.percent()) / 100,
        };
        Inputs {
            setting,
            pool_bytes: 90 * MIB,
            pinned_bytes: 0,
            limit_bytes,
            writers: 2,
            ups_writers: 0,
            ups_bytes: None,
            shortage: None,
        }
    }

    fn shares(inputs: &Inputs) -> (u8, u8, u64) {
        let status = decide(inputs);
        (status.read_percent, status.write_percent, status.write_bytes)
    }

    #[test]
    fn without_write_back_all_of_the_cache_is_for_reads() {
        for setting in ["auto", "25:75", "100:0"] {
            let status = decide(&Inputs { writers: 0, ..inputs(setting) });
            assert_eq!((status.read_percent, status.write_bytes), (100, 0));
            assert_eq!(status.setting, setting);
            assert_eq!(status.reason, "no volume is in write-back mode, so all of it is for reads");
        }
    }

    #[test]
    fn the_shares_follow_the_setting() {
        assert_eq!(shares(&inputs("auto")), (33, 67, 60 * MIB));
        let half = inputs("50:50");
        assert_eq!(shares(&half), (50, 50, 45 * MIB));
        let reason = decide(&half).reason;
        assert_eq!(reason, "50 % were set for writes; reads also use what writes do not need");
        let none = decide(&inputs("100:0"));
        assert_eq!((none.write_percent, none.write_bytes), (0, 0));
        assert!(none.reason.ends_with("which go through to the disks"), "{}", none.reason);
        let pinned = Inputs { pinned_bytes: 45 * MIB, limit_bytes: 30 * MIB, ..inputs("auto") };
        let reason = decide(&pinned).reason;
        assert!(
            reason.contains("two thirds are for writes, not counting pinned memory"),
            "{reason}"
        );
        assert_eq!(shares(&pinned), (67, 33, 30 * MIB));
    }

    #[test]
    fn a_ups_allows_less() {
        let all = Inputs { ups_writers: 2, ups_bytes: Some(9 * MIB), ..inputs("25:75") };
        assert_eq!(shares(&all), (90, 10, 9 * MIB));
        assert!(decide(&all).reason.contains("; the UPS allows 9MiB;"), "{}", decide(&all).reason);
        let some = Inputs { ups_writers: 1, ..all };
        assert_eq!(shares(&some).1, 75);
        let reason = decide(&some).reason;
        assert!(reason.contains("allows 9MiB to the volumes that only it protects"), "{reason}");
        for more in [
            Inputs { ups_bytes: Some(90 * MIB), ..some },
            Inputs { ups_writers: 0, ups_bytes: Some(0), ..inputs("25:75") },
        ] {
            assert_eq!(shares(&more).1, 75);
            assert!(!decide(&more).reason.contains("UPS"));
        }
    }

    #[test]
    fn a_share_that_is_too_small_says_so() {
        let short = Inputs { shortage: Some("too little for 'x'".into()), ..inputs("99:1") };
        assert!(decide(&short).reason.ends_with("; too little for 'x'"));
    }

    #[test]
    fn a_setting_survives_the_encoding() {
        for text in ["auto", "100:0", "50:50", "25:75"] {
            let ratio: CacheRatio = text.parse().unwrap();
            assert_eq!(decode(encode(ratio)), Some(ratio));
        }
        assert_eq!(decode(0), None);
        for word in [77, 300, u64::MAX - 1] {
            assert_eq!(decode(word), None, "of another program");
        }
    }
}
