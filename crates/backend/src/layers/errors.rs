//! `error(rate=0.01,kind=read,errno=EIO,after=N,range=A-B,seed=S):BACKING`: some I/O fails.
//!
//! An I/O that fails here does not reach the backend below. The seed and the arrival order of
//! matching I/Os determine which ones fail.

use super::{Kinds, describe};
use crate::random::Random;
use crate::spec::{Fields, SpecError, number, size_bytes};
use crate::sync::lock;
use crate::{Backend, Description, Io, IoKind};
use forebay_types::{ByteRange, IoError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A fault injection rule.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorRule {
    /// Matching kinds of I/O.
    pub kinds: Kinds,
    /// Matching byte range: any I/O that overlaps it. `None` matches the whole store, and is the
    /// only choice that matches flushes.
    pub range: Option<ByteRange>,
    /// Matching I/Os that pass before the first can fail.
    pub after: u64,
    /// Failing share of the rest, 0 to 1.
    pub rate: f64,
    /// The error of a failing I/O.
    pub error: IoError,
    /// Seed of the random choice.
    pub seed: u64,
}

impl Default for ErrorRule {
    /// Everything fails with an input/output error.
    fn default() -> Self {
        Self { kinds: Kinds::ALL, range: None, after: 0, rate: 1.0, error: IoError::Io, seed: 0 }
    }
}

/// Error numbers of block devices, by name.
const ERRNOS: [(&str, IoError); 10] = [
    ("EIO", IoError::Io),
    ("EPERM", IoError::NotPermitted),
    ("ENOMEM", IoError::NoMemory),
    ("EINVAL", IoError::Invalid),
    ("ENOSPC", IoError::NoSpace),
    ("EOVERFLOW", IoError::Overflow),
    ("ENOTSUP", IoError::NotSupported),
    ("EOPNOTSUPP", IoError::NotSupported),
    ("ESHUTDOWN", IoError::Shutdown),
    ("EROFS", IoError::NotPermitted),
];

impl ErrorRule {
    /// Parses the options of the layer.
    pub(super) fn parse(text: &str) -> Result<Self, SpecError> {
        let keys = ["rate", "kind", "errno", "after", "range", "seed"];
        let fields = Fields::parse("error", text, ',', &keys)?;
        let share = |text: &str| number(text).filter(|rate| (0.0..=1.0).contains(rate));
        let errno =
            |text: &str| ERRNOS.into_iter().find(|&(name, _)| name == text).map(|(_, error)| error);
        let range = |text: &str| {
            let (from, to) = text.split_once('-')?;
            let (from, to) = (size_bytes(from)?, size_bytes(to)?);
            (from < to).then(|| ByteRange::new(from, to - from))
        };
        let default = Self::default();
        Ok(Self {
            kinds: fields
                .get("kind", "read, write, flush, discard, zero, all or read+write", Kinds::parse)?
                .unwrap_or(default.kinds),
            range: fields.get("range", "1GiB-2GiB (the end is exclusive)", range)?,
            after: fields.get("after", "100", number)?.unwrap_or(default.after),
            rate: fields.get("rate", "0.01 (0 to 1)", share)?.unwrap_or(default.rate),
            error: fields
                .get("errno", "EIO, ENOSPC, EPERM, EINVAL, ENOMEM or ESHUTDOWN", errno)?
                .unwrap_or(default.error),
            seed: fields.get("seed", "1", number)?.unwrap_or(default.seed),
        })
    }

    fn matches(&self, io: &Io) -> bool {
        let is_in_range = self
            .range
            .is_none_or(|range| !matches!(io.kind, IoKind::Flush) && range.overlaps(io.range()));
        self.kinds.contains(io.kind) && is_in_range
    }
}

/// A backend with injected errors.
pub struct ErrorLayer {
    rule: ErrorRule,
    is_enabled: AtomicBool,
    choice: Mutex<ErrorChoice>,
    inner: Arc<dyn Backend>,
    pub(super) description: Description,
}

struct ErrorChoice {
    random: Random,
    /// Matching I/Os that still pass before the first can fail.
    pass_count: u64,
    failed_count: u64,
}

impl ErrorLayer {
    /// Fails some I/O of `inner`.
    pub fn new(inner: Arc<dyn Backend>, rule: ErrorRule) -> Self {
        let choice =
            ErrorChoice { random: Random::new(rule.seed), pass_count: rule.after, failed_count: 0 };
        let description = describe("error", &*inner);
        let choice = Mutex::new(choice);
        Self { rule, is_enabled: AtomicBool::new(true), choice, inner, description }
    }

    /// Switches the faults on or off. While they are off, I/O does not count towards
    /// [`ErrorRule::after`].
    pub fn set_enabled(&self, enabled: bool) {
        self.is_enabled.store(enabled, Ordering::Relaxed);
    }

    /// The number of I/Os failed by this layer.
    pub fn failed_count(&self) -> u64 {
        lock(&self.choice).failed_count
    }

    /// Whether this I/O is to fail. Counts it if it matches the rule.
    fn should_fail(&self, io: &Io) -> bool {
        if !self.is_enabled.load(Ordering::Relaxed) || !self.rule.matches(io) {
            return false;
        }
        let mut choice = lock(&self.choice);
        if choice.pass_count > 0 {
            choice.pass_count -= 1;
            return false;
        }
        let is_chosen = choice.random.unit() < self.rule.rate;
        choice.failed_count += u64::from(is_chosen);
        is_chosen
    }
}

impl Backend for ErrorLayer {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        if self.should_fail(&io) {
            io.done.complete(Err(self.rule.error));
        } else {
            self.inner.submit(io);
        }
    }

    fn below(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }
}
