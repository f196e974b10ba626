//! `delay(read=5ms,write=5ms):BACKING`: each I/O waits before it is passed on.
//!
//! A delayed write is not stored yet. `forever` never passes it on: the I/O hangs as on a dead
//! disk, and is answered with an error when the layer is closed.

use super::describe;
use crate::spec::{Fields, SpecError, duration_ns};
use crate::sync::lock;
use crate::timer::Timer;
use crate::{Backend, Description, Io, IoKind};
use std::sync::{Arc, Mutex};

/// How long an I/O waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DelayTime {
    /// No delay.
    #[default]
    None,
    /// This many nanoseconds.
    Ns(u64),
    /// Until the layer is closed.
    Forever,
}

/// How long each kind of I/O waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Reads.
    pub read: DelayTime,
    /// Writes.
    pub write: DelayTime,
    /// Flushes.
    pub flush: DelayTime,
    /// Discards.
    pub discard: DelayTime,
    /// Requests to zero a range.
    pub zero: DelayTime,
}

impl Delays {
    /// The same delay for all kinds.
    pub const fn all(wait: DelayTime) -> Self {
        Self { read: wait, write: wait, flush: wait, discard: wait, zero: wait }
    }

    /// Parses `read=5ms,write=forever`.
    pub(super) fn parse(text: &str) -> Result<Self, SpecError> {
        const EXAMPLE: &str = "5ms, 80us or forever";
        let keys = ["read", "write", "flush", "discard", "zero", "all"];
        let fields = Fields::parse("delay", text, ',', &keys)?;
        let wait = |text: &str| match text {
            "forever" => Some(DelayTime::Forever),
            text => duration_ns(text).map(DelayTime::Ns),
        };
        let all = fields.get("all", EXAMPLE, wait)?.unwrap_or_default();
        let get = |key| Ok(fields.get(key, EXAMPLE, wait)?.unwrap_or(all));
        Ok(Self {
            read: get("read")?,
            write: get("write")?,
            flush: get("flush")?,
            discard: get("discard")?,
            zero: get("zero")?,
        })
    }

    fn of(&self, kind: IoKind) -> DelayTime {
        match kind {
            IoKind::Read => self.read,
            IoKind::Write { .. } => self.write,
            IoKind::Flush => self.flush,
            IoKind::Discard => self.discard,
            IoKind::Zero { .. } => self.zero,
        }
    }
}

/// A backend that is slower than the one below it.
pub struct Delay {
    delays: Delays,
    timer: Timer,
    /// The hanging I/Os.
    hung: Mutex<Vec<Io>>,
    inner: Arc<dyn Backend>,
    pub(super) description: Description,
}

impl Delay {
    /// Delays the I/O of `inner`.
    pub fn new(inner: Arc<dyn Backend>, delays: Delays) -> Self {
        let description = describe("delay", &*inner);
        Self { delays, timer: Timer::new(), hung: Mutex::new(Vec::new()), inner, description }
    }

    /// The number of hanging I/Os.
    pub fn hung_count(&self) -> usize {
        lock(&self.hung).len()
    }
}

impl Backend for Delay {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        match self.delays.of(io.kind) {
            DelayTime::None | DelayTime::Ns(0) => self.inner.submit(io),
            DelayTime::Ns(wait_ns) => {
                let inner = self.inner.clone();
                let timer = self.timer.handle();
                timer.schedule(timer.now_ns() + wait_ns, Box::new(move || inner.submit(io)));
            }
            DelayTime::Forever => lock(&self.hung).push(io),
        }
    }

    fn below(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }
}
