//! `rate(bandwidth=10MiB/s,iops=100):BACKING`: limits the rate of I/O.
//!
//! I/Os pass one at a time. Each takes the time that its limits imply, the longer one if both are
//! set. There is no burst allowance: idle time is not credited, as on a disk. Flushes pass at once.

use super::describe;
use crate::spec::{Fields, SpecError, bytes_per_second, number};
use crate::sync::lock;
use crate::timer::Timer;
use crate::{Backend, Description, Io, IoKind};
use std::sync::{Arc, Mutex};

/// Rate limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Bytes read and written per second, above zero; `None` for no limit.
    pub bytes_per_second: Option<u64>,
    /// I/Os per second, above zero; `None` for no limit.
    pub ios_per_second: Option<u64>,
}

impl RateLimits {
    /// Parses `bandwidth=10MiB/s,iops=100`.
    pub(super) fn parse(text: &str) -> Result<Self, SpecError> {
        let fields = Fields::parse("rate", text, ',', &["bandwidth", "iops"])?;
        let positive = |text: &str| number(text).filter(|&n| n > 0);
        Ok(Self {
            bytes_per_second: fields.get("bandwidth", "10MiB/s", bytes_per_second)?,
            ios_per_second: fields.get("iops", "100", positive)?,
        })
    }

    /// The time for one I/O, in nanoseconds.
    fn cost_ns(&self, io: &Io) -> u64 {
        const SECOND_NS: u128 = 1_000_000_000;
        let share = |units: u64, per_second: Option<u64>| match per_second {
            Some(per_second) => {
                let ns = u128::from(units) * SECOND_NS / u128::from(per_second.max(1));
                u64::try_from(ns).unwrap_or(u64::MAX / 4)
            }
            None => 0,
        };
        let bytes = match io.kind {
            IoKind::Read | IoKind::Write { .. } => io.len,
            IoKind::Flush => return 0,
            IoKind::Discard | IoKind::Zero { .. } => 0,
        };
        share(bytes, self.bytes_per_second).max(share(1, self.ios_per_second))
    }
}

/// A backend with rate limits.
pub struct Rate {
    rates: RateLimits,
    timer: Timer,
    /// End of the time reserved for earlier I/O.
    free_at_ns: Mutex<u64>,
    inner: Arc<dyn Backend>,
    pub(super) description: Description,
}

impl Rate {
    /// Limits the I/O of `inner`.
    pub fn new(inner: Arc<dyn Backend>, rates: RateLimits) -> Self {
        let description = describe("rate", &*inner);
        Self { rates, timer: Timer::new(), free_at_ns: Mutex::new(0), inner, description }
    }

    /// Reserves time for an I/O at `now_ns`. Returns the end of that time.
    fn reserve(&self, now_ns: u64, cost_ns: u64) -> u64 {
        let mut free_at_ns = lock(&self.free_at_ns);
        *free_at_ns = (*free_at_ns).max(now_ns).saturating_add(cost_ns);
        *free_at_ns
    }
}

impl Backend for Rate {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let cost_ns = self.rates.cost_ns(&io);
        if cost_ns == 0 {
            return self.inner.submit(io);
        }
        let timer = self.timer.handle();
        let at_ns = self.reserve(timer.now_ns(), cost_ns);
        let inner = self.inner.clone();
        timer.schedule(at_ns, Box::new(move || inner.submit(io)));
    }

    fn below(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }
}
